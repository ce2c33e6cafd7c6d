//! Real programs on a real mount: the clients' own call orders, their libraries, tidefs's own client library in each
//! language, fio, the usual tools, the POSIX suite, and a random exerciser of one file.
//!
//! What is run is named by each module. A program that is missing is an error unless the machine cannot have it:
//! `packaging/dev.sh` installs all of them. `TIDEFS_TEST_DIR=DIR` runs everything on a plain directory instead.

#[path = "../common/mod.rs"]
mod common;

mod c_library;
mod conformance;
mod cuda;
mod fio;
mod fsx;
mod posix;
mod python;
mod python_package;
mod tools;
