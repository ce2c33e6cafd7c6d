#!/bin/bash
# Installs what was built where mount(8), fstab, systemd, man and the shells look for it. `install.sh --help` says more.
#
# PREFIX/share/tidefs/installed lists what was installed: --uninstall removes that, and nothing else.
set -euo pipefail
umask 022

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
prefix=/usr/local destdir='' from=${CARGO_TARGET_DIR:-$root/target}/release command=install

usage() {
    cat <<'TEXT'
usage: packaging/install.sh [--prefix PREFIX] [--destdir DIR] [--from DIR]
       packaging/install.sh --uninstall [--prefix PREFIX] [--destdir DIR]

  --prefix PREFIX   where the programs, manual pages and completions go. Default: /usr/local. The mount helper goes into
                    /sbin all the same, and the unit to where systemd looks.
  --destdir DIR     do all of it below DIR, to make a package or an image of it.
  --from DIR        the folder of the built tidefsd and tidefs. Default: target/release.
  --uninstall       remove what was installed with this PREFIX and DIR. What is mounted stays so; settings, lines of
                    /etc/fstab and units that were enabled stay, too: unmount and `systemctl disable` them before.
TEXT
}

say() { printf '%s\n' "$*"; }
# Ends the script with a message on standard error: what happened, then what to do.
die() {
    printf 'install.sh: error: %s\n' "$1" >&2
    shift
    if (($#)); then printf '            %s\n' "$@" >&2; fi
    exit 1
}

# What is installed, without DESTDIR.
installed=()

need_writable() {
    local place=$destdir$1
    while [[ ! -e $place ]]; do place=$(dirname -- "$place"); done
    [[ -d $place && -w $place ]] || die "no right to write into $place." \
        "Run this as root (sudo), or try it below a folder of your own: --destdir DIR."
}

# Lists a file before it is there: whatever ends this script, --uninstall removes what it left.
enlist() {
    installed+=("$1")
    printf '%s\n' "$1" >>"$destdir$list"
}

put() {
    local mode=$1 source=$2 target=$3
    enlist "$target"
    # In one step, by a rename: a daemon that is started meanwhile is the earlier one or this one, and whole.
    unfinished=$destdir$target.new
    install -D -m "$mode" -- "$source" "$unfinished"
    mv -fT -- "$unfinished" "$destdir$target"
    say "$destdir$target"
}

command_install() {
    local program shell page file
    for program in tidefsd tidefs; do
        [[ -x $from/$program ]] || die "there is no $program in $from." "Build it, not as root, then try again:" \
            "  cargo build --release --locked -p tidefs -p tidefs-cli --bin tidefsd --bin tidefs" \
            "or name the folder of the built programs: --from DIR."
    done
    # mount(8) looks in /sbin, which most systems have as a link to /usr/sbin; a package must not put a folder there.
    local helpers=/sbin units=/etc/systemd/system
    if [[ -L $destdir/sbin || (! -e $destdir/sbin && -L /sbin) ]]; then helpers=/usr/sbin; fi
    # Below any other prefix systemd does not look.
    case $prefix in /usr | /usr/local) units=$prefix/lib/systemd/system ;; esac
    for file in "$prefix/bin" "$prefix/share" "$helpers" "$units"; do need_writable "$file"; done

    made=$(mktemp -d)
    unfinished=$made/new
    trap 'rm -rf -- "$made" "$unfinished"' EXIT
    "$from/tidefs" manpages "$made/man" >/dev/null
    for shell in bash zsh fish; do "$from/tidefs" completions "$shell" >"$made/$shell"; done
    sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$root/packaging/systemd/tidefs@.service" >"$made/unit"

    local is_upgrade=
    if [[ -f $destdir$list ]]; then is_upgrade=yes; fi
    install -d -- "$(dirname -- "$destdir$list")"
    for program in tidefsd tidefs; do put 755 "$from/$program" "$prefix/bin/$program"; done
    # The helper is the command by another name. The link is relative, so that it holds below DESTDIR too.
    install -d -- "$destdir$helpers"
    enlist "$helpers/mount.tidefs"
    ln -srfT -- "$destdir$prefix/bin/tidefs" "$destdir$helpers/mount.tidefs"
    say "$destdir$helpers/mount.tidefs -> $prefix/bin/tidefs"
    put 644 "$made/unit" "$units/tidefs@.service"
    for page in "$made"/man/*; do put 644 "$page" "$prefix/share/man/man${page##*.}/${page##*/}"; done
    put 644 "$made/bash" "$prefix/share/bash-completion/completions/tidefs"
    put 644 "$made/zsh" "$prefix/share/zsh/site-functions/_tidefs"
    put 644 "$made/fish" "$prefix/share/fish/vendor_completions.d/tidefs.fish"

    printf '%s\n' "${installed[@]}" >"$made/installed"
    # What an earlier version had, and this one has not.
    while read -r file; do rm -f -- "$destdir$file"; done < <(grep -vxFf "$made/installed" "$destdir$list" || true)
    unfinished=$destdir$list.new
    install -m 644 -- "$made/installed" "$unfinished"
    mv -fT -- "$unfinished" "$destdir$list"
    say "$destdir$list"
    if [[ -n $destdir ]]; then return; fi
    say "Next: systemctl daemon-reload, and then README.md, \"Daily use\"."
    if [[ $is_upgrade ]]; then
        say "Daemons that run stay what they are until they are restarted; with on_stop=keep no object is lost by that."
    fi
}

command_uninstall() {
    local file
    [[ -f $destdir$list ]] || die "there is no $destdir$list, so nothing is removed." "Which --prefix was it installed with?"
    mapfile -t installed <"$destdir$list"
    for file in "${installed[@]}" "$list"; do need_writable "$(dirname -- "$file")"; done
    for file in "${installed[@]}" "$list"; do
        rm -f -- "$destdir$file"
        say "removed $destdir$file"
    done
    rmdir --ignore-fail-on-non-empty -- "$(dirname -- "$destdir$list")"
}

while (($#)); do
    case $1 in
        --prefix | --destdir | --from)
            [[ -n ${2:-} ]] || die "$1 needs a value."
            printf -v "${1#--}" %s "${2%/}"
            shift
            ;;
        --uninstall) command=uninstall ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && die "unknown option \`$1\`." ;;
    esac
    shift
done
# The unit and the list name it in lines of their own.
[[ $prefix =~ ^(/[A-Za-z0-9._+-]+)*$ ]] || die "\`$prefix\` is no PREFIX: it starts with / and has plain characters only."
list=$prefix/share/tidefs/installed
readonly root prefix destdir from command list
"command_$command"
