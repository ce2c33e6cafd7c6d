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
