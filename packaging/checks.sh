# shellcheck shell=bash
# What `dev.sh test` checks beside the tests. Sourced by it; `note` is its own.

check_scripts() {
    local script
    for script in packaging/*.sh mount-tools/*/*.sh tests/*/*.sh .ci/run; do bash -n "$script"; done
    if command -v shellcheck >/dev/null; then
        shellcheck packaging/*.sh mount-tools/*/*.sh tests/*/*.sh .ci/run
    else
        note "shellcheck is not installed: the scripts were only parsed."
    fi
}

check_typos() {
    if command -v typos >/dev/null; then typos; else note "typos is not installed: spelling was not checked."; fi
}

check_licences() {
    if cargo deny --version >/dev/null 2>&1; then
        cargo deny --offline check bans licenses sources
    else
        note "cargo-deny is not installed: licences and sources of dependencies were not checked."
    fi
}

check_docs() {
    export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings"
    local documented=(--no-deps --document-private-items --locked)
    # The library of the daemon, the program of the CLI and the library for C are all called tidefs, and so would be
    # their pages: one after the other, and the daemon's last, so that its pages stay. Of the whole workspace as far as can
    # be, or dependencies are checked again with other features.
    cargo doc --workspace --bin tidefs "${documented[@]}"
    cargo doc --workspace --exclude tidefs --lib "${documented[@]}"
    cargo doc --workspace "${documented[@]}"
}
