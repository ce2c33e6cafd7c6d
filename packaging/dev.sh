#!/bin/bash
# The two commands of a developer: `dev.sh run` mounts a cache built from this checkout, `dev.sh test` runs
# everything that must pass before a change is merged. `dev.sh help` says more.
#
# Works without a terminal and without standard input. Whatever it starts, it ends; it unmounts only what lies
# below the prefixes in `test_mount_prefixes`, and nothing that was mounted before it began.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
target_dir=${CARGO_TARGET_DIR:-$root/target}
# A relative one is below the checkout, where cargo runs; what it builds is started elsewhere.
if [[ $target_dir != /* ]]; then export CARGO_TARGET_DIR=$root/$target_dir && target_dir=$CARGO_TARGET_DIR; fi
python_env=$target_dir/test-venv
posix_suite=$target_dir/test-tools/bin/pjdfstest
readonly root target_dir python_env posix_suite

usage() {
    cat <<'TEXT'
usage: packaging/dev.sh COMMAND

  run [DIR] [-- OPTION...]   build tidefsd, mount it on DIR and show that it works; Ctrl-C unmounts.
                             DIR is made when it is missing. Default: $XDG_RUNTIME_DIR/tidefs-demo, or
                             /tmp/tidefs-demo. Each OPTION goes to tidefsd as it is: dev.sh run -- --capacity 8GiB
  test                       every check that a change must pass: formatting, lints, documentation, all tests.
  test FILTER...             only the tests whose names contain a FILTER, and nothing else.
  soak [SECONDS]             transfers between processes under faults for 600 s, or so many: every byte is checked,
                             and memory and descriptors must not grow. `test` has a quarter of a minute of it.
  soak ssd [SECONDS]         the same for a mount with an SSD tier, for 1200 s or so many.
  soak cluster [SECONDS]     the same for hosts of a cluster that others join, leave and crash in, for 1200 s or so many.
  deps                       install what `run` and `test` need beside a Rust toolchain, and say why.
  help                       this text.

Environment
  CI=true            use the test profile `ci`: longer limits, and a JUnit report under target/nextest/ci/.
  CARGO_TARGET_DIR   build somewhere else than in target/.
  DEV_SH_NO_APT      set to 1: never call apt; say what is missing and stop.

Mounting with passthrough needs root. As another user, `run` starts only the daemon through sudo, and `test`
only the test programs.
TEXT
}

say() { printf '%s\n' "$*"; }
note() { printf 'dev.sh: %s\n' "$*"; }
# Ends the script with a message on standard error: what happened, then what to do.
die() {
    printf 'dev.sh: error: %s\n' "$1" >&2
    shift
    if (($#)); then printf '        %s\n' "$@" >&2; fi
    exit 1
}

am_root() { [[ $(id -u) -eq 0 ]]; }
as_root() {
    if am_root; then "$@"; else sudo -- "$@"; fi
}
need_sudo() {
    am_root && return
    command -v sudo >/dev/null || die "$1 needs root, and there is no sudo here." "Run this command as root."
}

# Has sudo ask for its password now, if it wants one. `sudo -v` would ask also where no command needs one.
ask_for_root() { sudo -- true || die "sudo runs no command as root here; its message stands above." "Run this command as root."; }

# --- What must be installed -----------------------------------------------------------------------------------

# shellcheck source=packaging/needs.sh
source "$root/packaging/needs.sh"

command_deps() {
    ensure_rust
    ensure_packages "${test_needs[@]}"
    ensure_packages_if_possible "${guest_needs[@]}"
    ensure_python_clients
    ensure_posix_suite
    if ! cargo nextest --version >/dev/null 2>&1; then
        note "cargo-nextest is not installed; the tests then run under cargo test, with fewer limits on time."
        note "To have it: cargo install --locked cargo-nextest (builds for some minutes)."
    fi
    note "everything that run and test need is installed."
}

# --- run ------------------------------------------------------------------------------------------------------

daemon_pid=
daemon_log=

# signal NAME PID: as root, by the kill of a shell. Not every machine has a program of that name, which is what sudo would look for.
# shellcheck disable=SC2016 # the shell that it starts expands them
signal() { as_root bash -c 'kill "-$1" "$2"' bash "$@" 2>/dev/null; }

# Asks the daemon to unmount, waits for it, and returns its status.
stop_daemon() {
    local pid=$daemon_pid status=0
    [[ -n $pid ]] || return 0
    daemon_pid=
    trap '' INT TERM
    # Through sudo the daemon's parent is root's; it passes the signal on.
    signal TERM "$pid" || true
    wait "$pid" || status=$?
    rm -f -- "$daemon_log"
    return "$status"
}

# shellcheck disable=SC2329,SC2317 # called by a trap
on_interrupt() {
    local status=0
    say
    note "stopping"
    stop_daemon || status=$?
    if ((status == 0)); then note "unmounted."; fi
    exit "$status"
}

# Prints a command as one would type it, then runs it: what follows on the screen is its real output.
show() {
    printf '$ %s\n' "$1"
    bash -c "$1" </dev/null || die "that command failed on a fresh mount, which is a bug in tidefs."
}

wait_until_mounted() {
    local tenths status=0
    for ((tenths = 0; tenths < 300; tenths++)); do
        if grep -q '^tidefs: mounted on ' "$daemon_log"; then return; fi
        if ! kill -0 "$daemon_pid" 2>/dev/null && ! signal 0 "$daemon_pid"; then
            wait "$daemon_pid" || status=$?
            daemon_pid=
            cat -- "$daemon_log" >&2
            rm -f -- "$daemon_log"
            die "tidefsd ended with status $status before it mounted; its message stands above."
        fi
        sleep 0.1
    done
    stop_daemon || true
    die "tidefsd did not mount within 30 seconds, and was stopped." "Its log above may say why."
}

command_run() {
    local dir=${XDG_RUNTIME_DIR:-/tmp}/tidefs-demo
    if (($#)) && [[ $1 != -- ]]; then
        dir=$1
        shift
    fi
    if (($#)); then
        [[ $1 == -- ]] || die "run takes one directory; options for tidefsd go after \`--\`."
        shift
    fi
    ensure_rust
    ensure_packages "${run_needs[@]}"
    check_fuse_device
    need_sudo "mounting with passthrough"

    dir=$(realpath -sm -- "$dir")
    # A mount point whose daemon died cannot be made or looked into; tidefsd itself replaces such a mount.
    mkdir -p -- "$dir" 2>/dev/null || grep -qF -- " $dir fuse.tidefs " /proc/self/mounts || as_root mkdir -p -- "$dir" ||
        die "cannot make the directory $dir." "Name another one: packaging/dev.sh run DIR"

    note "building tidefsd and tidefs, optimised; the first time takes a few minutes."
    (cd "$root" && cargo build --release --locked -p tidefs -p tidefs-cli --bin tidefsd --bin tidefs </dev/null)

    if ! am_root; then
        note "mounting with passthrough needs CAP_SYS_ADMIN, so tidefsd runs under sudo."
        ask_for_root
    fi
    daemon_log=$(mktemp)
    trap on_interrupt INT TERM
    trap 'stop_daemon || true' EXIT
    # The daemon must hold nothing below a mount as its working directory, so it starts in /.
    local as_daemon=()
    am_root || as_daemon=(sudo --)
    (cd / && exec ${as_daemon[@]+"${as_daemon[@]}"} "$target_dir/release/tidefsd" "$dir" \
        -o on_stop=discard "$@") >"$daemon_log" </dev/null &
    daemon_pid=$!
    wait_until_mounted

    say
    demonstrate "$dir"
    say
    say "tidefs is mounted on $dir. Every file you write below a directory of it is a key."
    say "What it does: $(am_root || printf 'sudo ')$target_dir/release/tidefs status $dir"
    say "To stop: press Ctrl-C here, or kill -TERM $$. The cached objects are then discarded."

    local status=0
    wait "$daemon_pid" || status=$?
    daemon_pid=
    rm -f -- "$daemon_log"
    if ((status != 0)); then die "tidefsd ended with status $status; its log above says why."; fi
    note "tidefsd has unmounted $dir and ended."
}

# Writes a block the way engines do, reads it back, and shows what tidefs knows about it.
demonstrate() {
    local space=$1/demo quoted
    mkdir -p -- "$space"
    quoted=$(printf '%q' "$space")
    show "dd if=/dev/urandom of=$quoted/.block.tmp bs=4M count=1 status=none && sha256sum <$quoted/.block.tmp && mv $quoted/.block.tmp $quoted/block"
    show "sha256sum <$quoted/block"
    show "getfattr --absolute-names -n user.tidefs.tier $quoted/block && getfattr --absolute-names -n user.tidefs.checksum $quoted/block"
}

# --- test -----------------------------------------------------------------------------------------------------

step_names=()
step_seconds=()
run_log=

# Runs a named step, times it, and ends the script at its failure.
step() {
    local name=$1 began=$SECONDS status
    shift
    say "== $name"
    # In a subshell of its own, so that the first failing command of a step ends it: bash ignores `set -e` left
    # of `||` and inside `if`.
    set +e
    (set -e; "$@") </dev/null
    status=$?
    set -e
    if ((status != 0)); then
        summary
        say "failed: $name (status $status, after $((SECONDS - began)) s). Later steps were not run."
        exit "$status"
    fi
    step_names+=("$name")
    step_seconds+=("$((SECONDS - began))")
}

summary() {
    local index
    say
    for index in "${!step_names[@]}"; do
        printf '%6d s  %s\n' "${step_seconds[index]}" "${step_names[index]}"
    done
}

# Where tests mount: below the build folder, and in temporary directories made with this exact prefix. The
# private tmpfs of a daemon lies below its state directory, in a folder named after its mount point.
test_mount_prefixes() {
    local temporary=${TMPDIR:-/tmp}
    temporary=${temporary%/}
    local instance=${temporary#/}
    printf '%s\n' "$target_dir/tmp/" "$temporary/tidefs-test-" "/run/tidefs/${instance//\//-}-tidefs-test-"
}

# Mount points of this machine below those prefixes, the innermost first.
test_mounts() {
    local prefixes point prefix
    mapfile -t prefixes < <(test_mount_prefixes)
    while read -r _ _ _ _ point _; do
        point=$(printf '%b' "$point") # mountinfo writes a space as \040
        for prefix in "${prefixes[@]}"; do
            if [[ $point == "$prefix"* ]]; then printf '%s\n' "$point"; fi
        done
    done </proc/self/mountinfo | sort -r
}

# Detaches what the tests of this run left mounted. A clean run leaves nothing, so each line is worth a look.
unmount_leftovers() {
    local point
    while IFS= read -r point; do
        if [[ $'\n'$mounted_before$'\n' == *$'\n'"$point"$'\n'* ]]; then continue; fi
        note "a test left $point mounted; detaching it."
        # --no-canonicalize: looking into a mount whose daemon hangs would hang this script too.
        if am_root; then umount --lazy --no-canonicalize -- "$point" || true
        else sudo -n umount --lazy --no-canonicalize -- "$point" || fusermount3 -uz -- "$point" || true; fi
    done < <(test_mounts)
    if [[ -n $run_log ]]; then rm -f -- "$run_log"; fi
}

# shellcheck source=packaging/checks.sh
source "$root/packaging/checks.sh"

have_nextest() { cargo nextest --version >/dev/null 2>&1; }

build_tests() {
    if have_nextest; then
        cargo nextest run --workspace --locked --no-run
    else
        cargo test --workspace --locked --no-run
    fi
}

# What tests of the client libraries load, so that none of them waits for a compiler.
build_client_libraries() {
    cargo build --locked -p tidefs-client-c
    if "$python_env/bin/python3" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        mount-tools/client-python/build.sh "$python_env/bin/python3" "$target_dir/wheels"
    else
        note "the Python package needs Python 3.11 or later: it is not built, and its tests say that they are skipped."
    fi
}

# Runs the tests and keeps their output, so that the runner's closing line can be shown once more at the end.
run_tests() {
    local profile=default
    if [[ ${CI:-} == true ]]; then profile=ci; fi
    if have_nextest; then
        cargo nextest run --workspace --locked --profile "$profile" "$@" 2>&1 | tee "$run_log"
    else
        note "cargo-nextest is not installed: using cargo test, which has no limit on the time of a test."
        run_tests_by_cargo "$@"
    fi
}

# The same by cargo test. It takes one filter itself, and test programs take any number.
run_tests_by_cargo() {
    local run=(cargo test --workspace --locked --lib --bins --tests --no-fail-fast --) modules skipped status=0
    if (($#)); then
        "${run[@]}" --test-threads=2 "$@" 2>&1 | tee "$run_log"
        # For cargo test that is no failure; for cargo-nextest it is.
        grep -qE '^test .* \.\.\. ok$' "$run_log" || die "no test has a name with: $*"
        return
    fi
    # What loads the whole machine, by the names of its modules, runs with nothing else beside it.
    mapfile -t modules < <(sed -n 's/.*test(\/^(\(.*\))::\/).*/\1/p' .config/nextest.toml | sed '1!d; s/|/::\n/g; s/$/::/')
    ((${#modules[@]})) || die ".config/nextest.toml names no tests that load the whole machine."
    skipped=("${modules[@]/#/--skip=}")
    "${run[@]}" --test-threads=2 "${skipped[@]}" 2>&1 | tee "$run_log" || status=$?
    "${run[@]}" --test-threads=1 "${modules[@]}" 2>&1 | tee -a "$run_log" || status=$?
    return "$status"
}

# Only root mounts with passthrough: let cargo start the test programs, and nothing else, through sudo.
run_test_programs_as_root() {
    am_root && return
    need_sudo "mounting in tests"
    local triple
    triple=$(cd "$root" && rustc -vV | sed -n 's/^host: //p')
    triple=${triple//-/_}
    note "the tests mount filesystems, so the test programs run under sudo."
    ask_for_root
    export "CARGO_TARGET_${triple^^}_RUNNER=sudo --preserve-env --"
}

command_test() {
    cd "$root"
    ensure_rust
    ensure_packages "${test_needs[@]}"
    if ((!$#)); then ensure_packages_if_possible "${guest_needs[@]}"; fi
    ensure_python_clients
    ensure_posix_suite
    check_fuse_device
    run_test_programs_as_root
    export TIDEFS_TEST_PYTHON=${TIDEFS_TEST_PYTHON:-$python_env/bin/python3}
    export TIDEFS_TEST_POSIX=${TIDEFS_TEST_POSIX:-$posix_suite}
    export CARGO_TERM_PROGRESS_WHEN=never
    # What a later build would take up again is of no use where there is none.
    if [[ ${CI:-} == true ]]; then export CARGO_INCREMENTAL=0; fi

    run_log=$(mktemp)
    mounted_before=$(test_mounts)
    readonly mounted_before
    trap unmount_leftovers EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    if (($#)); then
        step "tests named $*" run_tests "$@"
    else
        # The order is by time to the first failure, not by importance.
        step "formatting (cargo fmt)" cargo fmt --all -- --check
        step "scripts" check_scripts
        step "spelling (typos)" check_typos
        step "licences (cargo deny)" check_licences
        step "lints (clippy)" cargo clippy --workspace --all-targets --locked -- -D warnings
        step "documentation builds (cargo doc)" check_docs
        step "building the tests" build_tests
        step "building the client libraries" build_client_libraries
        step "examples in the documentation (doc tests)" cargo test --workspace --locked --doc --quiet
        step "tests" run_tests
        step "tests in a guest with soft-RoCE, netem and the kernel of the distribution" tests/guest/test.sh
    fi
    summary
    # Each program of cargo test has a line, also those of whose tests none was to run.
    grep -E '^ *Summary \[|^test result:' "$run_log" | grep -v '^test result: ok\. 0 passed' || true
}

# --- soak -----------------------------------------------------------------------------------------------------

command_soak() {
    local seconds=${1:-600}
    if [[ ${1:-} == ssd || ${1:-} == cluster ]]; then seconds=${2:-1200}; fi
    [[ $seconds =~ ^[0-9]+$ ]] || die "\`$seconds\` is not a number of seconds."
    cd "$root"
    ensure_rust
    if [[ ${1:-} == ssd ]]; then
        run_test_programs_as_root
        TIDEFS_TEST_SECONDS=$seconds cargo test --locked -p tidefs --test process -- \
            --exact ssd_soak::days_of_work_on_both_tiers_keep_every_byte_and_grow_nothing --nocapture
        return
    fi
    if [[ ${1:-} == cluster ]]; then
        run_test_programs_as_root
        TIDEFS_TEST_SECONDS=$seconds cargo test --locked -p tidefs --test cluster -- \
            --exact churn::hosts_that_come_crash_and_leave_cost_those_that_stay_nothing --nocapture
        return
    fi
    # Not by nextest, which ends what takes too long.
    TIDEFS_SOAK_SECONDS=$seconds cargo test --locked -p tidefs-engine --test processes -- \
        --exact soak::random_batches_under_faults_keep_every_byte_and_leak_nothing --nocapture
}

case ${1:-help} in
    run) shift && command_run "$@" ;;
    test) shift && command_test "$@" ;;
    soak) shift && command_soak "$@" ;;
    deps) command_deps ;;
    help | -h | --help) usage ;;
    *)
        usage >&2
        die "unknown command \`$1\`."
        ;;
esac
