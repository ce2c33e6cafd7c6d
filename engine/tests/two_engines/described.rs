//! What is known of the regions of a peer, and for how long.

use tidefs_engine::engine::RegionDescriptor;

use super::*;

#[test]
fn a_region_that_was_disowned_is_not_kept_and_asked_for_when_it_is_used_again() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, SOCKETS), end(&runtime, SOCKETS));
    here.connect(&runtime, &there);
    let known = || here.engine.status().peers[0].regions;
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    let submit = || here.engine.submit(Batch::new(vec![read], soon())).wait().into_result();
    let described = there.engine.describe(there.region_id).unwrap();
    // What was said is believed, though there is more.
    here.engine.import(there.id, RegionDescriptor { length: ByteCount(1), ..described });
    assert_eq!(known(), 1);
    assert!(matches!(submit(), Err(Error::OutOfRange { .. })));
    here.engine.disown(there.id, there.region_id);
    assert_eq!(known(), 0);
    submit().unwrap();
    assert_eq!(known(), 1);
    // Neither is known.
    here.engine.disown(there.id, RegionId(999));
    here.engine.disown(PeerId { member: member(), ..there.id }, there.region_id);
    assert_eq!(known(), 1);
}
