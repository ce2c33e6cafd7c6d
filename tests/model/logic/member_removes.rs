//! What the other members are told of names that a host removes, or gives to something else, when something else was put there
//! meanwhile.

use std::time::Duration;

use tidefs::cluster::Stamp;

use super::member::{Member, WRITE};
use super::resent::CREATE;
use crate::system::System;

#[test]
fn a_removal_that_is_told_late_takes_nothing_that_came_after_it() {
    let mut member = Member::with_one_told();
    let removal = member.unlink(0);
    member.logic.advance(Duration::from_millis(1), false);
    let second = member.publish(2);
    member.tell(second);
    member.tell(removal);
    assert_eq!(member.told(), (2, 0));
    assert!(member.is_there());
}

#[test]
fn a_removal_that_is_told_late_takes_nothing_that_is_being_closed_since() {
    let mut member = Member::with_one_told();
    let removal = member.unlink(0);
    member.logic.advance(Duration::from_millis(1), false);
    let (writer, promise) = member.write(0, CREATE);
    member.tell(promise);
    member.tell(removal);
    assert_eq!(member.told(), (2, 0));
    member.logic.close(0, writer);
    assert!(member.is_there());
}

#[test]
fn what_was_removed_before_it_was_told_is_not_told_after_its_removal() {
    let mut member = Member::new();
    let first = member.publish(1);
    let removal = member.unlink(0);
    member.tell(removal);
    member.tell(first);
    assert_eq!(member.told(), (0, 1));
}

#[test]
fn the_removal_of_an_object_that_is_being_written_in_place_is_told() {
    let mut member = Member::with_one_told();
    let writer = member.logic.open(1, "k", WRITE).expect("open");
    let removal = member.unlink(1);
    assert!(!removal.is_empty(), "others may have a copy of what it was");
    member.tell(removal);
    member.logic.close(1, writer);
    assert_eq!(member.told(), (1, 1));
    assert!(!member.is_there());
}

/// What it waits for, a disk or another member, may take that long.
#[test]
fn what_another_host_puts_under_the_old_name_before_a_rename_is_told_stays() {
    let mut member = Member::new();
    let [other] = member.join([2]);
    member.has_announced();
    let first = member.publish(1);
    member.tell(first);
    let first = member.stamp("k");
    let renamed = member.rename("k2");
    // By a clock that is behind.
    member.published_by(&other, "k", Stamp(first.0 + 1));
    member.tell(renamed);
    assert!(member.is_found_by(&other, "k2") && member.is_found_by(&other, "k"));
}

/// It is sealed by the rename: later than it was closed, and than what the other host puts there.
#[test]
fn what_another_host_puts_under_the_name_of_a_closed_file_before_its_rename_is_told_stays() {
    let mut member = Member::new();
    let [other] = member.join([2]);
    member.has_announced();
    let (writer, promise) = member.write(0, CREATE);
    member.tell(promise);
    member.logic.advance(Duration::from_millis(1), false);
    let renamed = member.rename("k2");
    let sealed = member.stamp("k2");
    member.published_by(&other, "k", Stamp(sealed.0 - 1));
    member.tell(renamed);
    assert!(member.is_found_by(&other, "k2") && member.is_found_by(&other, "k"));
    member.release(writer);
}

#[test]
fn what_is_renamed_is_found_under_its_old_name_no_more_though_it_was_told_just_before() {
    let mut member = Member::new();
    let [other] = member.join([2]);
    member.has_announced();
    let first = member.publish(1);
    member.tell(first);
    member.logic.advance(Duration::from_millis(1), false);
    let second = member.publish(2);
    member.tell(second);
    assert!(member.is_found_by(&other, "k"));
    let renamed = member.rename("k2");
    member.tell(renamed);
    assert!(member.is_found_by(&other, "k2") && !member.is_found_by(&other, "k"));
}
