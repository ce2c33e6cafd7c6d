#!/bin/bash
# Runs a command in a small virtual machine that has what this machine's kernel may lack: soft-RoCE (an RDMA NIC made of
# software, rxe0) and netem. Its files are this machine's, read-only, with changes kept in its memory; the folder $SHARE is the
# same on both sides. The exit status is the command's.
#
#   tests/guest/guest.sh COMMAND [ARGUMENT...]
#
# The kernel is the distribution's, taken out of its package; nothing is installed. Emulated (no KVM), so some 20 to 50 times
# slower than here. `guest.sh --check` says whether all that is needed is here: 0, or 77 with the reason.
#
# Environment: SHARE (default: a temporary folder), GUEST_SECONDS (default 600), GUEST_CACHE (default
# ~/.cache/tidefs/guest, some 20 MB for each kernel).
set -euo pipefail

readonly addresses=(10.8.0.1 10.8.0.2)
# Needed before the files of this machine can be seen.
readonly boot_modules=(virtio_pci 9pnet_virtio 9p overlay)
# Needed inside. crc32_generic: rxe asks for that checksum by name and fails with ENOENT without it.
readonly more_modules=(crc32_generic rdma_rxe rdma_ucm ib_uverbs veth sch_netem nf_tables nft_reject_inet nft_numgen fuse loop ext4)
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidefs/guest}

skip() {
    printf 'guest.sh: skipped: %s\n' "$*" >&2
    exit 77
}

check() {
    [[ $(uname -m) == x86_64 ]] || skip "only made for x86_64 so far"
    local row
    for row in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod rdma:iproute2 \
        ibv_devinfo:ibverbs-utils apt-get:apt dpkg-deb:dpkg; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${row%%:*}" >/dev/null || skip "${row%%:*} is missing (package ${row##*:})"
    done
    ldd "$(command -v busybox)" >/dev/null 2>&1 && skip "busybox is not static (package busybox-static)"
    is_prepared || kernel_package >/dev/null
}

is_prepared() { [[ $(cat "$cache/current/ready" 2>/dev/null) == "${boot_modules[*]} ${more_modules[*]}" ]]; }

# The package that the distribution's `linux-image-amd64` stands for.
kernel_package() {
    local package
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
    [[ -n $package ]] || skip "no package linux-image-amd64 is known (apt-get update?)"
    printf '%s' "$package"
}

# Files of the modules named, with all that they depend on, in the order of loading.
module_files() {
    local tree=$1 release=$2 module
    shift 2
    for module in "$@"; do
        modprobe --dirname "$tree" --set-version "$release" --show-depends "$module" 2>/dev/null |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++'
}

# Makes kernel, modules and first root file system, once for each kernel.
prepare() {
    is_prepared && return
    local package work release file
    package=$(kernel_package)
    release=${package#linux-image-}
    work=$(mktemp -d)
    printf 'guest.sh: making a guest from %s, once\n' "$package" >&2
    (cd "$work" && apt-get download -q "$package" >/dev/null 2>&1) || skip "$package cannot be downloaded"
    dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work" ./boot "./lib/modules/$release"
    depmod -b "$work" "$release"

    local made=$work/made
    mkdir -p "$made/modules/lib/modules/$release" "$work/root"/{bin,proc,sys,dev,modules}
    cp "$work/boot/vmlinuz-$release" "$made/kernel"
    module_files "$work" "$release" "${boot_modules[@]}" "${more_modules[@]}" | while read -r file; do
        install -D -m 644 "$file" "$made/modules/${file#"$work/"}"
    done
    cp "$work/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} "$made/modules/lib/modules/$release/"
    depmod -b "$made/modules" "$release"
    printf '%s' "$release" >"$made/release"

    cp "$(command -v busybox)" "$work/root/bin/busybox"
    module_files "$made/modules" "$release" "${boot_modules[@]}" | while read -r file; do
        cp "$file" "$work/root/modules/"
        basename "$file" >>"$work/root/modules/list"
    done
    first_program >"$work/root/init"
    chmod 755 "$work/root/init"
    (cd "$work/root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$made/initrd"
    printf '%s' "${boot_modules[*]} ${more_modules[*]}" >"$made/ready"
    mkdir -p "$cache"
    rm -rf "${cache:?}/current"
    mv "$made" "$cache/current"
    rm -rf "$work"
}

# What the kernel starts: it finds the files of this machine and hands over to the script in the shared folder.
first_program() {
    cat <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
while read -r module; do $b insmod /modules/$module; done </modules/list
share=
for word in $($b cat /proc/cmdline); do case $word in share=*) share=${word#share=} ;; esac; done
$b mkdir /host /memory /new
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose host /host
$b mount -t tmpfs none /memory
$b mkdir /memory/changes /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/changes,workdir=/memory/work none /new
$b mount -t tmpfs none /new/run
$b mkdir -p /new$share
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /new$share
for place in proc sys dev; do $b mount -o move /$place /new/$place; done
exec $b switch_root /new /bin/bash $share/inside.sh
INIT
}

# What runs inside, as process 1.
inside() {
    local release address
    release=$(cat "$cache/current/release")
    printf 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SHARE=%q\n' "$share"
    cat <<SETUP
mkdir -p /dev/shm /dev/pts /lib/modules
mount -t tmpfs none /dev/shm; mount -t devpts none /dev/pts
ln -sfn $cache/current/modules/lib/modules/$release /lib/modules/$release
ulimit -l unlimited -n 65536
modprobe -a ${more_modules[*]}
ip link set lo up
# One NIC with several addresses: two rxe devices of one machine do not reach each other. Room for frames of 4096 bytes.
ip link add rdma0 mtu 4200 type veth peer name rdma1 mtu 4200
SETUP
    for address in "${addresses[@]}"; do printf 'ip address add %s/24 dev rdma0\n' "$address"; done
    cat <<'SETUP'
ip link set rdma0 up; ip link set rdma1 up
rdma link add rxe0 type rxe netdev rdma0
for attempt in $(seq 100); do ibv_devinfo -d rxe0 2>/dev/null | grep -q PORT_ACTIVE && break; sleep 0.1; done
SETUP
    printf 'cd %q\n(' "$PWD"
    printf ' %q' "$@"
    cat <<'REST'
 )
echo $? >"$SHARE/status"
sync
echo o >/proc/sysrq-trigger
while :; do :; done
REST
}

run() {
    local cores
    cores=$(($(nproc) > 4 ? 4 : $(nproc)))
    inside "$@" >"$share/inside.sh"
    timeout "${GUEST_SECONDS:-600}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max \
        -smp "$cores" -m 4096 -nodefaults -no-user-config -no-reboot -display none -serial stdio \
        -kernel "$cache/current/kernel" -initrd "$cache/current/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on share=$share" \
        -fsdev "local,id=host,path=/,security_model=none,multidevs=remap,readonly=on" \
        -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev "local,id=share,path=$share,security_model=none" \
        -device virtio-9p-pci,fsdev=share,mount_tag=share </dev/null || true
    if [[ ! -e $share/status ]]; then
        printf 'guest.sh: the guest ended, or was ended after %s s, before its command\n' "${GUEST_SECONDS:-600}" >&2
        return 99
    fi
    return "$(cat "$share/status")"
}

check
[[ ${1:-} == --check ]] && exit 0
(($#)) || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; }
prepare
if [[ -n ${SHARE:-} ]]; then
    share=$(realpath -- "$SHARE")
    rm -f "$share/status"
else
    share=$(mktemp -d)
    trap 'rm -rf -- "$share"' EXIT
fi
run "$@"
