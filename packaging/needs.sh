# shellcheck shell=bash
# What `dev.sh` needs of the machine, and how it gets what is missing: it says what, and why. Sourced by it; `root`, `target_dir`,
# `python_env`, `posix_suite`, `note`, `die`, `am_root`, `as_root` and `need_sudo` are its own, and it reads the lists.
# shellcheck disable=SC2034,SC2154

# command-or-path : apt package : reason
readonly run_needs=(
    'cc:build-essential:links Rust programs'
    'fusermount3:fuse3:mounts and unmounts FUSE filesystems'
    'getfattr:attr:reads the facts that tidefs shows as extended attributes'
    'protoc:protobuf-compiler:compiles the messages of etcd, which coordinates many hosts'
    '/usr/include/google/protobuf/descriptor.proto:libprotobuf-dev:has what the messages of etcd import'
)
readonly test_needs=(
    "${run_needs[@]}"
    'setfacl:acl:tests that access control lists are refused as documented'
    'fio:fio:tests reads and writes by libaio, io_uring and mmap with verification'
    'jq:jq:tests and scripts read the JSON of the tools with it'
    'etcd:etcd-server:is what tests of many hosts coordinate by'
    'etcdctl:etcd-client:gives etcd the user and password that a test of it needs'
    'python3:python3:runs the tests with real Python clients'
    'pkg-config:pkg-config:tells the tests in C how to link libtidefs.so'
    'ip:iproute2:tests transfers between hosts that are network namespaces'
    'nft:nftables:cuts and resets the connections of those hosts'
    '/usr/include/rdma/fabric.h:libfabric-dev:brings libfabric, which tests of transfers use, and its headers'
)

# For tests/guest: a virtual machine with soft-RoCE, and the kernel of the distribution. Without it those tests say that they were skipped.
readonly guest_needs=(
    'qemu-system-x86_64:qemu-system-x86:runs the guest with soft-RoCE'
    'busybox:busybox-static:starts that guest'
    'cpio:cpio:packs what it starts with'
    'depmod:kmod:picks the modules of its kernel'
    'ibv_devinfo:ibverbs-utils:sees that its RDMA NIC is up'
    '/etc/libibverbs.d/rxe.driver:ibverbs-providers:drives soft-RoCE'
)

# The first line of `cargo --version` that Cargo.toml accepts, for example 1.95.
rust_version_wanted() { sed -n 's/^rust-version = "\([0-9.]*\)"$/\1/p' "$root/Cargo.toml" | head -n 1; }

ensure_rust() {
    if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
        note "cargo is installed but not on PATH; using ${CARGO_HOME:-$HOME/.cargo}/bin for this run."
    fi
    local wanted have
    wanted=$(rust_version_wanted)
    if ! command -v cargo >/dev/null; then
        die "there is no Rust toolchain (cargo) here; tidefs is built with Rust $wanted." \
            "Install rustup, the Rust installer, with these two lines, then run this command again:" \
            "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal" \
            "  . \"\$HOME/.cargo/env\"" \
            "(No curl? apt-get install curl. The packaged rustc of Debian 12 and Ubuntu 22.04 is too old.)"
    fi
    # Inside the checkout rustup picks the version of rust-toolchain.toml, and downloads it on first use.
    have=$(cd "$root" && cargo --version) || die "cargo is installed but does not start." \
        "With rustup, this may help: rustup toolchain install $wanted --profile minimal -c rustfmt -c clippy"
    have=${have#cargo }
    have=${have%% *}
    if [[ $(printf '%s\n%s\n' "$wanted" "${have%%-*}" | sort -V | head -n 1) != "$wanted" ]]; then
        die "cargo is version $have; tidefs needs Rust $wanted or later." \
            "With rustup: rustup update. Without it: remove the packaged cargo, then install rustup from" \
            "https://rustup.rs (it reads rust-toolchain.toml here and fetches the right version by itself)."
    fi
}

# Installs the packages of the rows given as arguments whose command is missing.
ensure_packages() {
    local row name package reason packages=()
    for row in "$@"; do
        IFS=: read -r name package reason <<<"$row"
        [[ $name == /* && -e $name ]] && continue
        # /sbin is not on every user's PATH.
        PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null && continue
        note "$name is missing: it $reason (package $package)."
        packages+=("$package")
    done
    install_packages ${packages[@]+"${packages[@]}"}
}

install_packages() {
    (($#)) || return 0
    if [[ ${DEV_SH_NO_APT:-} == 1 ]] || ! command -v apt-get >/dev/null; then
        die "packages are missing, and this run may not or cannot install them: $*" \
            "Install them with your system's package manager (these are the Debian names), then try again."
    fi
    need_sudo "installing packages"
    note "installing with apt-get: $*"
    as_root apt-get update -qq </dev/null || note "apt-get update failed; trying with the lists of packages that are here."
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null
}

# The same, where it can be done: tests that miss them are skipped, and say so.
ensure_packages_if_possible() {
    (ensure_packages "$@") || note "going on without them: the tests that need them will say that they are skipped."
}

# A private Python with the packages that real clients use, and maturin, which builds the wheel of our own. Without PyTorch, whose CPU build alone is 200 MB;
# tests that need it say so and are run where it is found.
ensure_python_clients() {
    if "$python_env/bin/python3" -c 'import numpy, safetensors, maturin' 2>/dev/null; then return; fi
    if ! python3 -c 'import ensurepip' 2>/dev/null; then
        note "python3's venv module is missing: it keeps the test clients apart from the system (python3-venv)."
        install_packages python3-venv
    fi
    note "installing numpy, safetensors and maturin into $python_env: for tensors, and for our own package."
    rm -rf -- "$python_env"
    python3 -m venv "$python_env" </dev/null
    "$python_env/bin/pip" install --quiet --disable-pip-version-check \
        'numpy<3' 'safetensors<1' 'maturin>=1.9.4,<2' </dev/null ||
        die "pip could not install numpy, safetensors and maturin." \
            "It needs a package index: check the network or pip's settings (pip config list), then try again."
}

# The POSIX suite for filesystems, built from the same registry as everything else.
ensure_posix_suite() {
    local -r version=0.2.2
    if [[ "$("$posix_suite" --version 2>/dev/null)" == "pjdfstest $version" ]]; then return; fi
    note "building pjdfstest $version into $target_dir/test-tools: it asks of the mount what POSIX asks of a filesystem."
    (cd "$root" && cargo install --quiet --debug --locked --force --target-dir "$target_dir/test-tools/target" \
        --root "$target_dir/test-tools" --version "$version" pjdfstest) ||
        die "cargo could not install pjdfstest $version." "Check the network, or what ~/.cargo/config.toml says of registries."
    rm -rf -- "$target_dir/test-tools/target"
}

check_fuse_device() {
    [[ -c /dev/fuse ]] && return
    die "/dev/fuse does not exist, so no FUSE filesystem can be mounted." \
        "On a host: modprobe fuse (as root). In a container, start it with" \
        "  --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined"
}
