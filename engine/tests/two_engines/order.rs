//! Which of the operations that wait for one connection goes first.

use tidefs_engine::transport::layer::record::{Record, recorded};
use tidefs_engine::transport::tcp::TcpConfig;

use super::*;
use crate::ways::config;

/// The connection takes one operation at a time, and stands still until all have been asked for.
#[test]
fn a_batch_that_somebody_waits_for_goes_before_those_that_wait_already() {
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let (faults, record) = (Faults::new(FaultOptions::default()), Record::new(100));
    let here = start_with(&runtime, config(), Access::ReadWrite, |parts| {
        let tcp = TcpConfig { operations_max: 1, ..TcpConfig::default() };
        let options = TransportOptions { tcp, ..TransportOptions::default() };
        let tcp = TransportName::Tcp.open(&options, parts)?;
        Ok(vec![recorded(faulty(tcp, &faults, &parts.runtime), &record)])
    });
    here.connect(&runtime, &there);
    let submit = |(priority, length)| {
        let read = here.request(&there, Direction::Read, 0, 0, length);
        here.engine.submit(Batch { priority, ..Batch::new(vec![read], soon()) })
    };
    // What follows is posted at once, by this thread.
    submit((Priority::Normal, 1)).wait().into_result().unwrap();
    faults.partition(there.id);
    let asked =
        [(Priority::Background, 2), (Priority::Background, 3), (Priority::Normal, 4), (Priority::Urgent, 5)];
    let handles = asked.map(submit);
    faults.heal(there.id);
    handles.into_iter().for_each(|handle| handle.wait().into_result().unwrap());
    let lengths: Vec<usize> = record.entries().iter().map(|entry| entry.length).collect();
    assert_eq!(lengths, [1, 2, 5, 4, 3]);
}
