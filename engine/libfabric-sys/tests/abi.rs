//! The declarations are those of the installed headers.
//!
//! A C program is written from the names that this crate declares, compiled against the headers, and its sizes, offsets
//! and numbers are compared with Rust's. Where there is no C compiler or no header, the test says so and passes:
//! nothing in this crate needs either. A structure may be longer in the headers than here, because later versions of
//! libfabric append to some; it may not be shorter, and no field may stand elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use libfabric_sys::*;

/// A size (`field` is empty) or an offset.
struct Place {
    c_type: &'static str,
    field: &'static str,
    bytes: usize,
    /// Bytes at the end of the Rust structure that 1.17 does not have.
    reserved: usize,
}

macro_rules! places {
    ($($name:ident $(- $reserved:expr)? => $c_type:literal { $($field:ident $(= $c_field:literal)?),* $(,)? })*) => {
        vec![$(
            Place {
                c_type: $c_type,
                field: "",
                bytes: size_of::<$name>(),
                reserved: 0 $(+ $reserved)?,
            },
            $(Place {
                c_type: $c_type,
                field: [$($c_field,)? stringify!($field)][0],
                bytes: offset_of!($name, $field),
                reserved: 0,
            },)*
        )*]
    };
}

fn places() -> Vec<Place> {
    let room = size_of::<[u64; 8]>();
    places! {
        fi_info => "struct fi_info" { next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr,
            handle, tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic }
        fi_tx_attr => "struct fi_tx_attr" { caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
            rma_iov_limit, tclass }
        fi_rx_attr => "struct fi_rx_attr" { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size,
            iov_limit }
        fi_ep_attr => "struct fi_ep_attr" { type_ = "type", protocol, protocol_version, max_msg_size, msg_prefix_size,
            max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
            auth_key_size, auth_key }
        fi_domain_attr => "struct fi_domain_attr" { domain, name, threading, control_progress, data_progress,
            resource_mgmt, av_type, mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt,
            max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key,
            auth_key_size, max_err_data, mr_cnt, tclass }
        fi_fabric_attr => "struct fi_fabric_attr" { fabric, name, prov_name, prov_version, api_version }
        fi_device_attr => "struct fi_device_attr" { name, device_id, device_version, vendor_id, driver, firmware }
        fi_pci_attr => "struct fi_pci_attr" { domain_id, bus_id, device_id, function_id }
        fi_bus_attr => "struct fi_bus_attr" { bus_type, pci = "attr.pci" }
        fi_link_attr => "struct fi_link_attr" { address, mtu, speed, state, network_type }
        fid_nic => "struct fid_nic" { fid, device_attr, bus_attr, link_attr, prov_attr }
        fi_context2 => "struct fi_context2" { internal }
        fi_av_attr => "struct fi_av_attr" { type_ = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fi_cq_attr => "struct fi_cq_attr" { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_cq_data_entry => "struct fi_cq_data_entry" { op_context, flags, len, buf, data }
        fi_cq_err_entry - room => "struct fi_cq_err_entry" { op_context, flags, len, buf, data, tag, olen, err,
            prov_errno, err_data, err_data_size }
        fi_mr_attr - room => "struct fi_mr_attr" { mr_iov, iov_count, access, offset, requested_key, context,
            auth_key_size, auth_key, iface, device }
        fi_rma_iov => "struct fi_rma_iov" { addr, len, key }
        fi_msg_rma => "struct fi_msg_rma" { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fid => "struct fid" { fclass, context, ops }
        fid_fabric => "struct fid_fabric" { fid, ops, api_version }
        fid_domain => "struct fid_domain" { fid, ops, mr }
        fid_av => "struct fid_av" { fid, ops }
        fid_cq => "struct fid_cq" { fid, ops }
        fid_mr => "struct fid_mr" { fid, mem_desc, key }
        fid_ep => "struct fid_ep" { fid, ops, cm, msg, rma, tagged, atomic, collective }
        fi_provider => "struct fi_provider" { version, fi_version, context, name, getinfo, fabric, cleanup }
        fi_ops => "struct fi_ops" { size, close, bind, control, ops_open, tostr, ops_set }
        fi_ops_fabric => "struct fi_ops_fabric" { size, domain, passive_ep, eq_open, wait_open, trywait, domain2 }
        fi_ops_domain => "struct fi_ops_domain" { size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open,
            stx_ctx, srx_ctx, query_atomic, query_collective, endpoint2 }
        fi_ops_mr => "struct fi_ops_mr" { size, reg, regv, regattr }
        fi_ops_av => "struct fi_ops_av" { size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
        fi_ops_cq => "struct fi_ops_cq" { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        fi_ops_ep => "struct fi_ops_ep" { size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        fi_ops_cm => "struct fi_ops_cm" { size, setname, getname, getpeer, connect, listen, accept, reject, shutdown,
            join }
        fi_ops_msg => "struct fi_ops_msg" { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata,
            injectdata }
        fi_ops_rma => "struct fi_ops_rma" { size, read, readv, readmsg, write, writev, writemsg, inject, writedata,
            injectdata }
    }
}

/// Names of [`ALL`] that 1.17 does not have.
const YOUNGER_THAN_1_17: &[&str] = &[
    "FI_OPT_CUDA_API_PERMITTED",
    "FI_OPT_SHARED_MEMORY_PERMITTED",
    "FI_OPT_MAX_MSG_SIZE",
    "FI_OPT_MAX_RMA_SIZE",
];

/// Includes that the program needs; `headers` tells whether they are there at all.
const INCLUDES: &str = "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
    #include <rdma/fi_endpoint.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_rma.h>\n\
    #include <rdma/fi_errno.h>\n#include <rdma/fi_ext.h>\n#include <rdma/providers/fi_prov.h>\n";

/// What C says: a number for each `name`. `None`, with the reason on standard output, where that cannot be found out.
fn ask_c() -> Option<BTreeMap<String, i128>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let compile = |text: &str| {
        std::fs::write(&source, text).unwrap();
        Command::new("cc").arg("-o").arg(&program).arg(&source).output()
    };
    match compile(&format!("{INCLUDES}int main(void) {{ return 0; }}\n")) {
        Err(error) => {
            println!("skipped: no C compiler `cc` to compare the declarations with: {error}");
            return None;
        }
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let first = said.lines().next().unwrap_or_default();
            println!("skipped: no headers of libfabric (Debian: libfabric-dev) to compare with: {first}");
            return None;
        }
        Ok(_) => {}
    }
    let mut text = format!("{INCLUDES}int main(void) {{\n");
    for Place { c_type, field, .. } in places() {
        let expression = if field.is_empty() {
            format!("sizeof({c_type})")
        } else {
            format!("offsetof({c_type}, {field})")
        };
        writeln!(text, "printf(\"{c_type}.{field} %zu\\n\", {expression});").unwrap();
    }
    let is_1_17 = "FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 20";
    for (name, _) in ALL {
        let print = format!(
            "if (({name}) < 0) printf(\"{name} %lld\\n\", (long long)({name}));\n\
             else printf(\"{name} %llu\\n\", (unsigned long long)({name}));"
        );
        if YOUNGER_THAN_1_17.contains(name) {
            writeln!(text, "#if !({is_1_17})\n{print}\n#endif").unwrap();
        } else {
            writeln!(text, "{print}").unwrap();
        }
    }
    text.push_str("return 0;\n}\n");
    let output = compile(&text).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = Command::new(&program).output().unwrap();
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    Some(
        printed
            .lines()
            .map(|line| {
                let (name, number) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), number.parse().unwrap())
            })
            .collect(),
    )
}

#[test]
fn declarations_are_those_of_the_installed_headers() {
    let Some(c) = ask_c() else { return };
    let mut differences = Vec::new();
    for Place { c_type, field, bytes, reserved } in places() {
        let name = format!("{c_type}.{field}");
        let (here, there) = ((bytes - reserved) as i128, c[&name]);
        let fits = if field.is_empty() { here <= there } else { here == there };
        if !fits {
            differences.push(format!("{name}: {here} here, {there} in C"));
        }
        // What the library writes into must have room for what the headers' version writes.
        if reserved > 0 && (bytes as i128) < there {
            differences.push(format!("{name}: {bytes} bytes of room here, {there} needed"));
        }
    }
    for (name, here) in ALL {
        match c.get(*name) {
            Some(there) if there == here => {}
            Some(there) => differences.push(format!("{name}: {here} here, {there} in C")),
            None => assert!(YOUNGER_THAN_1_17.contains(name), "{name} was not printed"),
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    println!("compared {} places and {} constants", places().len(), ALL.len());
}

#[test]
fn a_loaded_library_tells_its_version_and_lists_offers() {
    let library = match Library::open() {
        Ok(library) => library,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    assert!(library.version() >= version(1, 17), "{:x}", library.version());
    assert!(!library.describe(FI_EINVAL).is_empty());
    let mut offers = std::ptr::null_mut();
    // SAFETY: no hints are given; the list is freed below.
    let status = unsafe { library.get_info(version(1, 17), None, 0, std::ptr::null(), &mut offers) };
    // No offer at all is an answer too, on a host without any network.
    assert!(status == 0 || status == -FI_ENODATA, "{status}");
    if !offers.is_null() {
        // SAFETY: the list came from the call above and is not used afterwards.
        unsafe { library.free_info(offers) };
    }
}
