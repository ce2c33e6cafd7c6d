//! Tensors of DLPack: objects that are shown as tensors of bytes, and tensors of others that are taken as bytes.
//!
//! Layouts and rules follow `dlpack.h` 1.0.

mod ffi;

use std::ffi::{CStr, c_void};

pub(crate) use ffi::{Taken, capsule};

/// `DLTensor` of dlpack.h.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLUInt`.
const UINT: u8 = 1;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
/// `kDLCUDAHost` and `kDLROCMHost`: memory of the host that a driver registered.
const REGISTERED: [i32; 2] = [3, 11];
/// More dimensions than any tensor has.
const DIMENSIONS_MAX: usize = 64;

/// Whether programs may read memory of that kind of device.
fn is_of_the_host(device_type: i32) -> bool {
    device_type == CPU || REGISTERED.contains(&device_type)
}

/// Bytes that a tensor takes, one element of `bits` after the other. `strides` counts elements; `None` is row by row without
/// gaps. An error says what else it is.
fn contiguous_bytes(shape: &[i64], strides: Option<&[i64]>, bits: u64) -> Result<usize, &'static str> {
    const TOO_LARGE: &str = "the tensor is larger than memory";
    let mut elements: i64 = 1;
    for (index, &length) in shape.iter().enumerate().rev() {
        let is_in_place = strides.is_none_or(|strides| length <= 1 || strides.get(index) == Some(&elements));
        if !is_in_place && !shape.contains(&0) {
            return Err("the tensor is not contiguous; make it so first (`.contiguous()`)");
        }
        elements = elements.checked_mul(length).filter(|elements| *elements >= 0).ok_or(TOO_LARGE)?;
    }
    let bits =
        u64::try_from(elements).ok().and_then(|elements| elements.checked_mul(bits)).ok_or(TOO_LARGE)?;
    if bits % 8 != 0 {
        return Err("the tensor ends within a byte");
    }
    usize::try_from(bits / 8).map_err(|_| TOO_LARGE)
}
