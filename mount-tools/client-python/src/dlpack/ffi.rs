//! The unsafe part of DLPack: pointers in capsules.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{
    CPU, DIMENSIONS_MAX, Managed, NAME, NAME_VERSIONED, READ_ONLY, Tensor, UINT, Versioned, contiguous_bytes,
    is_of_the_host,
};
use crate::ffi::Shown;

/// What a tensor is made of, beside its header.
struct Context {
    shape: [i64; 1],
    strides: [i64; 1],
    _keeper: Box<dyn Send>,
}

/// The header of a tensor of bytes, and what `context` is to be.
fn tensor(shown: Shown) -> (Tensor, *mut Context) {
    let length = i64::try_from(shown.length).unwrap_or(i64::MAX);
    let context = Box::new(Context { shape: [length], strides: [1], _keeper: shown.keeper });
    let context = Box::into_raw(context);
    // SAFETY: the context was just made, and its fields stay where they are until its deleter runs.
    let (shape, strides) =
        unsafe { ((&raw mut (*context).shape).cast(), (&raw mut (*context).strides).cast()) };
    let tensor = Tensor {
        data: shown.start.cast(),
        device_type: CPU,
        device_id: 0,
        ndim: 1,
        code: UINT,
        bits: 8,
        lanes: 1,
        shape,
        strides,
        byte_offset: 0,
    };
    (tensor, context)
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: dlpack.h: called once, with the tensor that was handed out, from any thread; keepers may be dropped on any.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above; the context was made by `tensor`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as in `delete`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as in `delete`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

/// Ends a capsule whose tensor nobody took: who takes it renames the capsule.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter gives the capsule that is about to end; a name that is not its own gives NULL or false.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule with a tensor of bytes: of DLPack 1.0 if the consumer understands that, which alone can say that it may only be
/// read.
pub(crate) fn capsule<'py>(py: Python<'py>, is_versioned: bool, shown: Shown) -> PyResult<Bound<'py, PyAny>> {
    let flags = if shown.is_readonly { READ_ONLY } else { 0 };
    let (tensor, context) = tensor(shown);
    let context = context.cast();
    let (pointer, name): (*mut c_void, &CStr) = if is_versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { major: 1, minor: 0, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
    } else {
        let deleter = Some(delete as unsafe extern "C" fn(*mut Managed));
        (Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast(), NAME)
    };
    // SAFETY: the pointer is not NULL, the name lives for ever, and the destructor knows what the pointer is by the name.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule)) };
    if capsule.is_null() {
        // SAFETY: nobody else has the tensor.
        unsafe { if is_versioned { delete_versioned(pointer.cast()) } else { delete(pointer.cast()) } }
    }
    // SAFETY: a new reference, or NULL with an error set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// The memory of a tensor that its producer gave away, as long as this value lives.
pub(crate) struct Taken {
    _managed: Producers,
    start: NonNull<u8>,
    length: usize,
    is_readonly: bool,
    /// Given back with the interpreter's lock held, which producers may rely on.
    _not_send: PhantomData<*mut ()>,
}

/// What is to be given back, as old producers and new ones make it.
enum Producers {
    Old(NonNull<Managed>),
    New(NonNull<Versioned>),
}

impl Drop for Producers {
    fn drop(&mut self) {
        // SAFETY: the capsule was renamed when this was taken out of it, so it is given back here alone, once.
        unsafe {
            match *self {
                Self::Old(managed) => (*managed.as_ptr()).deleter.map(|delete| delete(managed.as_ptr())),
                Self::New(managed) => (*managed.as_ptr()).deleter.map(|delete| delete(managed.as_ptr())),
            }
        };
    }
}

impl Producers {
    /// Takes the tensor out of a capsule.
    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let take = |name: &CStr, used: &CStr| {
            // SAFETY: the object lives; one that is no capsule of that name is not valid. Names live for ever. Renaming it is
            // how dlpack.h has a consumer say that the tensor is its own now.
            unsafe {
                if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                    return None;
                }
                let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
                (ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) == 0).then_some(pointer)
            }
        };
        if let Some(managed) = take(NAME_VERSIONED, c"used_dltensor_versioned").and_then(NonNull::new) {
            return Ok(Self::New(managed.cast()));
        }
        let managed = take(NAME, c"used_dltensor").and_then(NonNull::new);
        let managed =
            managed.ok_or_else(|| PyTypeError::new_err("__dlpack__() returned no tensor of DLPack"))?;
        Ok(Self::Old(managed.cast()))
    }

    /// The tensor's header, and whether it may only be read.
    fn tensor(&self) -> PyResult<(&Tensor, bool)> {
        match self {
            Self::Old(managed) => {
                // SAFETY: dlpack.h: it stays until its deleter is called, which is when `self` is dropped.
                Ok((unsafe { &managed.as_ref().tensor }, false))
            }
            Self::New(managed) => {
                // SAFETY: as above; the version comes first in every version.
                let managed = unsafe { managed.as_ref() };
                if managed.major != 1 {
                    let text = format!("a tensor of DLPack {}, of which only 1 is understood", managed.major);
                    return Err(PyBufferError::new_err(text));
                }
                Ok((&managed.tensor, managed.flags & READ_ONLY != 0))
            }
        }
    }
}

impl Taken {
    /// The bytes of a tensor, which is contiguous and in memory of the host.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (device, _): (i32, i64) = object.call_method0("__dlpack_device__")?.extract()?;
        if !is_of_the_host(device) {
            return Err(PyBufferError::new_err(
                "the tensor is in memory of a device; copy it to the host first",
            ));
        }
        let wishes = PyDict::new(object.py());
        wishes.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&wishes)) {
            // Producers from before 1.0 know no such wish.
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                object.call_method0("__dlpack__")?
            }
            outcome => outcome?,
        };
        let managed = Producers::take(&capsule)?;
        let (tensor, is_readonly) = managed.tensor()?;
        let dimensions = usize::try_from(tensor.ndim).ok().filter(|dimensions| *dimensions <= DIMENSIONS_MAX);
        let dimensions = dimensions.ok_or_else(|| PyBufferError::new_err("a tensor of no sensible shape"))?;
        let slice = |numbers: *mut i64| {
            // SAFETY: dlpack.h: both have `ndim` numbers, or are NULL: a shape of none, strides of rows without gaps.
            NonNull::new(numbers)
                .map(|numbers| unsafe { std::slice::from_raw_parts(numbers.as_ptr(), dimensions) })
        };
        let shape = if dimensions == 0 { Some(&[][..]) } else { slice(tensor.shape) };
        let shape = shape.ok_or_else(|| PyBufferError::new_err("a tensor without a shape"))?;
        let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
        let length = contiguous_bytes(shape, slice(tensor.strides), bits).map_err(PyBufferError::new_err)?;
        let start = usize::try_from(tensor.byte_offset).ok().and_then(|offset| {
            NonNull::new(tensor.data.cast::<u8>().wrapping_add(offset)).filter(|_| !tensor.data.is_null())
        });
        let start = match start {
            Some(start) => start,
            None if length == 0 => NonNull::dangling(),
            None => return Err(PyBufferError::new_err("a tensor without memory")),
        };
        Ok(Self { _managed: managed, start, length, is_readonly, _not_send: PhantomData })
    }

    /// The bytes. Whoever else may write them while they are read is told not to.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the tensor is that long, contiguous, and stays until `_managed` is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes, to be written. None when they may only be read.
    pub(crate) fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if self.is_readonly {
            return None;
        }
        // SAFETY: as above, and it may be written; programs are told not to use it meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) })
    }
}
