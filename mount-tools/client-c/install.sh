#!/bin/bash
# Installs the C library that cargo built: install.sh LIBRARY PREFIX, for example
#   cargo build --release -p tidefs-client-c && mount-tools/client-c/install.sh target/release/libtidefs.so /usr/local
set -euo pipefail

(($# == 2)) || {
    printf 'usage: %s LIBRARY PREFIX\n' "$0" >&2
    exit 2
}
library=$1 prefix=$2
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
version=$(sed -n '/^\[workspace.package\]$/,/^\[/s/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml")

install -d "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$here"/include/*.h "$prefix/include/"
install -m 755 "$library" "$prefix/lib/libtidefs.so.$version"
# The name of record, which programs look for, and the one that the linker looks for.
ln -sf "libtidefs.so.$version" "$prefix/lib/libtidefs.so.${version%%.*}"
ln -sf "libtidefs.so.${version%%.*}" "$prefix/lib/libtidefs.so"
prefix=$(cd -- "$prefix" && pwd -P)
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" "$here/tidefs.pc.in" >"$prefix/lib/pkgconfig/tidefs.pc"

# ldconfig is not on every user's PATH.
PATH=$PATH:/usr/sbin:/sbin
# Whether programs look for libraries in this folder, once ldconfig has noted what is there.
is_searched() {
    local folder
    while read -r folder; do
        if [[ $folder -ef $1 ]]; then return; fi
    done < <(ldconfig -vNX 2>/dev/null | sed -n 's|^\(/[^:]*\):.*|\1|p')
    return 1
}
if ! is_searched "$prefix/lib"; then
    printf 'Programs find the library with LD_LIBRARY_PATH=%s/lib, or once this was typed:\n' "$prefix"
    printf '  echo %q/lib | sudo tee /etc/ld.so.conf.d/tidefs.conf && sudo ldconfig\n' "$prefix"
elif [[ $(id -u) -eq 0 ]]; then
    ldconfig
else
    printf 'Programs find the library once this was typed:\n  sudo ldconfig\n'
fi
