//! NICs that translate no more than so many pages: regions that are shared out among them, or refused.

use std::sync::Arc;

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::transport::Transport;
use tidefs_engine::transport::libfabric::{Fabric, FabricConfig};
use tidefs_engine::types::{ByteCount, RegionId};

use crate::harness::{
    Memory, Pair, alone, block_on, config, dead, expect_no_violation, held, in_pieces, open_with,
    strict_config,
};
use crate::pieces::all_bytes_arrive;

/// Pages of each NIC in these tests: too few for either region of [`all_bytes_arrive`].
const PAGES: u64 = 600;

pub(crate) fn with_pages(config: FabricConfig) -> FabricConfig {
    FabricConfig { pages_max: Some(PAGES), ..config }
}

fn memory(pages: u64) -> Arc<Region> {
    let region = Region::anonymous(ByteCount(pages * 4096), PageKind::Base, Access::ReadWrite);
    Arc::new(region.unwrap())
}

/// Whichever end shares its regions out, and wherever a registration ends: the strict provider knows no memory of another NIC.
#[test]
fn bytes_go_by_the_rails_that_have_them() {
    let _alone = alone();
    let (plain, shared) = (strict_config(), with_pages(strict_config()));
    let (pieces, both) = (in_pieces(plain.clone()), in_pieces(shared.clone()));
    for (near, far) in
        [(&shared, &shared), (&shared, &plain), (&plain, &shared), (&both, &shared), (&both, &pieces)]
    {
        let (Some(near), Some(far)) = (open_with(near), open_with(far)) else { return };
        let pair = Pair::of(near, far);
        all_bytes_arrive(&pair);
        drop(pair);
    }
    expect_no_violation();
}

/// With one rail here and two there, each of which has a part: the one talks to both.
#[test]
fn fewer_rails_than_the_peer_has_reach_all_of_its_regions() {
    let _alone = alone();
    let Some(far) = open_with(&with_pages(strict_config())) else { return };
    dead(true);
    let near = open_with(&strict_config());
    dead(false);
    let near = near.unwrap();
    assert_eq!((near.rails().len(), far.rails().len()), (1, 2));
    let pair = Pair::of(Arc::clone(&near), Arc::clone(&far));
    all_bytes_arrive(&pair);
    // Its pages are needed for what comes next.
    block_on(pair.far.unregister(RegionId(2)));
    drop(pair);
    let back = Pair::of(far, near);
    all_bytes_arrive(&back);
    drop(back);
    expect_no_violation();
}

fn version(fabric: &Fabric, id: u64, region: &Arc<Region>) -> Result<(u8, &'static str), Error> {
    let key = fabric.register(RegionId(id), region)?;
    Ok((key[0], fabric.key_name(&key)))
}

#[test]
fn what_one_nic_cannot_translate_is_shared_out_and_what_all_cannot_is_refused_with_numbers() {
    let _alone = alone();
    let Some(fabric) = open_with(&with_pages(strict_config())) else { return };
    assert_eq!(version(&fabric, 1, &memory(PAGES)), Ok((1, "libfabric")), "at every rail");
    let refused = |need, left| {
        let (budget, page_bytes) = (2 * PAGES, 4096);
        Err(Error::OverBudget { transport: "libfabric", need, left, budget, page_bytes })
    };
    assert_eq!(version(&fabric, 2, &memory(1)), refused(1, 0));
    block_on(fabric.unregister_unused(RegionId(1)));
    assert_eq!(version(&fabric, 3, &memory(PAGES + 1)), Ok((3, "libfabric/3")));
    assert_eq!(version(&fabric, 4, &memory(PAGES)), refused(PAGES, PAGES - 1));
    // One rail has room for it, and that one alone has it.
    let key = fabric.register(RegionId(5), &memory(PAGES - 1)).unwrap();
    assert_eq!((key[0], key[20]), (3, 1), "one part");
    let text = version(&fabric, 6, &memory(1)).unwrap_err().to_string();
    assert!(text.contains("a region of 1 pages of 4096 bytes: its NICs have 0 of 1200 left"), "{text}");
    for id in [3, 5] {
        block_on(fabric.unregister(RegionId(id)));
    }
    assert_eq!(version(&fabric, 7, &memory(PAGES)), Ok((1, "libfabric")));
    drop(fabric);
    expect_no_violation();
}

/// The table of a NIC has an entry for as long as the library has not closed the registration.
#[test]
fn pages_are_not_given_to_others_before_their_registration_is_closed() {
    let _alone = alone();
    let Some(fabric) = open_with(&with_pages(strict_config())) else { return };
    assert!(version(&fabric, 1, &memory(PAGES)).is_ok());
    held(true);
    let withdrawn = fabric.unregister_unused(RegionId(1));
    let refused = version(&fabric, 2, &memory(1));
    held(false);
    assert!(matches!(refused, Err(Error::OverBudget { left: 0, .. })), "{refused:?}");
    block_on(withdrawn);
    assert_eq!(version(&fabric, 3, &memory(PAGES)), Ok((1, "libfabric")));
    drop(fabric);
    expect_no_violation();
}

/// What fails to be registered takes no pages.
#[test]
fn a_region_that_a_nic_refuses_gives_its_pages_back() {
    let _alone = alone();
    let Some(fabric) = open_with(&with_pages(strict_config())) else { return };
    crate::harness::memory_max(64 << 10);
    let refused = version(&fabric, 1, &memory(PAGES));
    crate::harness::memory_max(0);
    assert!(matches!(refused, Err(Error::TransportFailed { .. })), "{refused:?}");
    // Each NIC gives its own back when it comes to it; this takes those of both.
    let again = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        version(&fabric, 2, &memory(2 * PAGES)).ok()
    });
    assert_eq!(again, Some((3, "libfabric/3")));
    drop(fabric);
    expect_no_violation();
}

/// On a provider that is no test: one NIC, whose budget is all there is.
#[test]
fn a_real_nic_takes_what_its_budget_allows() {
    let (Some(near), Some(far)) =
        (open_with(&FabricConfig { pages_max: Some(1100), ..config() }), open_with(&config()))
    else {
        return;
    };
    let pair = Pair::of(near, far);
    let count = pair.near.rails().len() as u64;
    let refused = pair.near.register(RegionId(3), &memory(1100 * count + 1));
    assert!(matches!(refused, Err(Error::OverBudget { .. })), "{refused:?}");
    all_bytes_arrive(&pair);
    let memory = Memory::new(&pair.far, 4, 4096, Access::Read);
    assert_eq!(pair.far.key_name(&memory.key), "libfabric");
}
