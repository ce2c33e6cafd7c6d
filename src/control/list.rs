//! Lists of objects, told while they are read.
//!
//! Threads: the one of the request, until all is told or nobody reads any more.

use std::ops::ControlFlow;

use tidefs_control_api::{
    ApiError, ErrorCode, KeyPath, ListEntry, ListPart, ListQuery, ListSummary, SortOrder,
};
use tidefs_engine::types::ObjectCount;

use super::operations::{bytes_of, pin, stamp, tier};
use super::refusal::refusal;
use crate::datapath::{Datapath, NodeFacts, Order};

/// See [`super::Operations::list`].
pub(super) fn list(
    datapath: &Datapath,
    query: &ListQuery,
    tell: &mut dyn FnMut(ListPart) -> ControlFlow<()>,
) -> Result<ListSummary, ApiError> {
    let path = bytes_of(&query.path)?;
    let order = match query.sort {
        SortOrder::Heat => Order::Heat,
        SortOrder::Name => Order::Name,
        SortOrder::Size => Order::Size,
        SortOrder::Age => Order::Age,
    };
    if query.limit == Some(0) {
        return Err(ApiError::new(ErrorCode::BadRequest, "a limit of 0 objects lists nothing")
            .next_step("leave `limit` out to list all"));
    }
    let mut left = query.limit.unwrap_or(u64::MAX);
    let mut part = ListPart::default();
    let listed = datapath.list_below(&path, order, |facts| {
        part.entries.push(entry_of(&facts));
        left -= 1;
        if left == 0 {
            return ControlFlow::Break(());
        }
        match part.entries.len() {
            ListPart::ENTRIES_MAX => tell(std::mem::take(&mut part)),
            _ => ControlFlow::Continue(()),
        }
    });
    let total = listed.map_err(|error| refusal(&query.path, &error))?;
    if !part.entries.is_empty() {
        // Whoever reads no more gets no summary either.
        let _ = tell(part);
    }
    Ok(ListSummary { total: ObjectCount(total) })
}

fn entry_of(facts: &NodeFacts) -> ListEntry {
    ListEntry {
        path: KeyPath::from_bytes(&facts.path),
        size: facts.size,
        tier: tier(facts.tier).unwrap_or_default(),
        last_used: Some(stamp(facts.used_at_ns)),
        sealed_at: facts.sealed_at_ns.map(stamp),
        hits: facts.uses.unwrap_or_default(),
        pin: pin(facts.policy.pin),
    }
}
