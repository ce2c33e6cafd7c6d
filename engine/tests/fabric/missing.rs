//! What is missing at an end: memory that a NIC does not have.

use tidefs_engine::error::Error;
use tidefs_engine::memory::Access;
use tidefs_engine::transport::{EndpointState, Transport};

use crate::harness::{Memory, alone, block_on};
use crate::strict::{DONE, close, open, read};

/// That memory of this end is not registered is not said of the peer's, which would be asked for in vain.
#[test]
fn memory_that_is_missing_at_this_end_is_not_taken_for_that_of_the_peer() {
    let _alone = alone();
    let Some((pair, local, remote)) = open() else { return };
    block_on(pair.near.unregister_unused(local.id));
    for result in read(&pair.endpoint, &local, &remote).wait() {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::TransportFailed { .. }), "{error:?}");
        assert!(error.to_string().contains("region 1 of this process"), "{error}");
    }
    assert_eq!(pair.endpoint.state(), EndpointState::Ready);
    let other = Memory::new(&pair.near, 3, 1 << 20, Access::ReadWrite);
    assert_eq!(read(&pair.endpoint, &other, &remote).wait(), DONE);
    close(pair);
}
