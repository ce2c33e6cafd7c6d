//! What the other members are told of a file that is closed under its final name, when others have changed what stands there
//! meanwhile.

use std::time::Duration;

use tidefs::cluster::Stamp;
use tidefs::datapath::News;
use tidefs::namespace::Ino;

use super::caller;
use super::member::{Member, TRUNCATE, WRITE, much_later};
use super::resent::CREATE;
use crate::common::wait;
use crate::system::{Open, System, Token};

const READ: Open = Open { read: true, write: false, truncate: false, ..TRUNCATE };

#[test]
fn what_is_closed_over_a_version_that_is_just_told_is_told_once_more() {
    let mut member = Member::with_one_told();
    let (writer, promise) = member.write(1, TRUNCATE);
    member.tell(promise);
    let second = member.publish(2);
    let being_told = member.cluster.about_to_publish(b"k");
    member.logic.write(1, writer, 0, &[8; 50_000]).expect("write");
    member.logic.close(1, writer);
    drop(being_told);
    member.has_published(3);
    member.tell(second);
    assert_eq!(member.told(), (3, 0), "what stands there was told");
}

#[test]
fn what_is_closed_over_a_later_version_is_told_once_more() {
    let mut member = Member::with_one_told();
    let (writer, promise) = member.write(1, TRUNCATE);
    member.tell(promise);
    member.logic.advance(Duration::from_millis(1), false);
    let second = member.publish(2);
    member.tell(second);
    member.logic.write(1, writer, 0, &[8; 50_000]).expect("write");
    member.logic.close(1, writer);
    member.has_published(4);
}

/// A file that is closed over an object which took the name while the file was written. Returns what is to be told of both, that
/// of the object first, and the descriptor.
fn closed_after_a_rename(member: &mut Member, length: usize) -> (Token, News, News) {
    // Whose bytes stay: what is written comes beside them.
    member.logic.open(2, "k", READ).expect("open");
    let writer = member.logic.open(1, "k", TRUNCATE).expect("open");
    member.logic.write(1, writer, 0, &[7; 60_000][..length]).expect("write");
    let renamed = member.publish(2);
    member.logic.advance(Duration::from_millis(1), false);
    member.logic.flush(1, writer);
    let (handle, _) = member.logic.handle(writer);
    let closed = member.datapath().news_of_close(&caller(1), handle);
    assert!(!closed.is_empty());
    (writer, renamed, closed)
}

#[test]
fn a_rename_that_is_told_late_says_nothing_of_what_was_replaced_by_a_close() {
    let mut member = Member::with_one_told();
    let (writer, renamed, closed) = closed_after_a_rename(&mut member, 60_000);
    member.tell(closed);
    member.tell(renamed);
    assert_eq!(member.told(), (2, 0), "what takes its place was told");
    member.release(writer);
    assert_eq!(member.logic.stat(0, "k").expect("it is there").size, 60_000);
    member.withdraw(member.stamp("k"));
    assert!(!member.is_there(), "it was told, and is not told again");
    assert_eq!(member.told(), (2, 0));
}

/// It was sealed long before what it replaces was closed.
#[test]
fn an_object_that_is_renamed_over_a_closed_file_is_told() {
    let mut member = Member::with_one_told();
    let other = member.logic.open(0, "k2.tmp", CREATE).expect("create");
    member.logic.write(0, other, 0, &[2; 40_000]).expect("write");
    member.logic.close(0, other);
    member.logic.rename(0, "k2.tmp", "k2", false).expect("rename");
    member.logic.advance(Duration::from_millis(1), false);
    member.logic.open(2, "k", READ).expect("open");
    let (writer, closed) = member.write(1, TRUNCATE);
    member.tell(closed);
    member.logic.rename(0, "k2", "k", false).expect("rename");
    let renamed = member.datapath().news_of(Ino::ROOT, b"k");
    member.tell(renamed);
    assert_eq!(member.told(), (3, 0));
    member.release(writer);
    assert_eq!(member.logic.stat(0, "k").expect("it is there").size, 40_000);
    assert_eq!(member.told(), (3, 0));
}

/// Another writer comes to a file that was closed, and dies in its open(2): the file comes to nothing when both are released.
fn joined(member: &mut Member, writer: Token) -> [Token; 2] {
    [writer, member.logic.open(1, "k", WRITE).expect("open")]
}

#[test]
fn what_outlives_a_file_that_was_to_take_its_place_is_told() {
    let mut member = Member::with_one_told();
    let (writer, renamed, closed) = closed_after_a_rename(&mut member, 0);
    member.tell(closed);
    member.tell(renamed);
    assert_eq!(member.told(), (2, 0));
    joined(&mut member, writer).into_iter().for_each(|writer| member.release(writer));
    assert_eq!(member.logic.stat(0, "k").expect("it is there").size, 50_000);
    member.has_published(3);
}

/// The withdrawal was on its way when the file was dropped.
#[test]
fn what_outlives_a_file_that_was_told_is_withdrawn_by_what_was_decided_since() {
    let mut member = Member::with_one_told();
    let (writer, renamed, closed) = closed_after_a_rename(&mut member, 0);
    member.tell(closed);
    member.tell(renamed);
    let writers = joined(&mut member, writer);
    member.before_others_tell(|member| {
        writers.into_iter().for_each(|writer| member.release(writer));
        member.withdraw(much_later());
    });
    assert!(!member.is_there(), "another host has put something in its place");
    assert_eq!(member.told(), (2, 0), "which it would take the place of");
}

#[test]
fn what_outlives_a_file_and_was_told_to_nobody_is_not_withdrawn_by_what_was_decided_before() {
    let mut member = Member::with_one_told();
    let (writer, renamed, closed) = closed_after_a_rename(&mut member, 0);
    member.tell(closed);
    let writers = joined(&mut member, writer);
    member.before_others_tell(|member| {
        writers.into_iter().for_each(|writer| member.release(writer));
        member.withdraw(much_later());
    });
    assert!(member.is_there(), "its rename is not answered yet");
    member.tell(renamed);
    assert_eq!(member.told(), (3, 0));
}

#[test]
fn what_outlives_a_file_and_is_told_above_what_another_host_wrote_is_taken_back() {
    let mut member = Member::new();
    let [other] = member.join([2]);
    member.has_announced();
    let first = member.publish(1);
    member.tell(first);
    let (writer, renamed, closed) = closed_after_a_rename(&mut member, 0);
    member.tell(closed);
    member.tell(renamed);
    let writers = joined(&mut member, writer);
    // As if this host told of the object already when it is told of that.
    let being_told = member.cluster.about_to_publish(b"k");
    member.published_by(&other, "k", Stamp(member.stamp("k").0 + 3_600_000_000_000));
    drop(being_told);
    assert!(member.is_there());
    writers.into_iter().for_each(|writer| member.release(writer));
    member.has_published(3);
    assert!(wait::until(wait::HANG, || !member.is_there()), "another host has put something in its place");
}

#[test]
fn a_close_that_is_told_late_says_nothing_of_a_file_that_was_overtaken() {
    let mut member = Member::with_one_told();
    let (writer, promise) = member.write(1, TRUNCATE);
    let second = member.publish(2);
    member.tell(second);
    // What is told at its turn, and what is to be told from now on.
    member.tell(promise);
    let (handle, _) = member.logic.handle(writer);
    assert!(member.datapath().news_of_close(&caller(1), handle).is_empty());
    assert_eq!(member.told(), (2, 0));
    member.release(writer);
    assert!(member.is_there());
    assert_eq!(member.told(), (2, 0));
}

#[test]
fn a_close_that_is_told_late_says_nothing_of_a_file_that_was_replaced() {
    let mut member = Member::new();
    let (writer, promise) = member.write(1, CREATE);
    let news = member.publish(2);
    member.tell(news);
    member.tell(promise);
    assert_eq!(member.told(), (1, 0));
    member.logic.close(1, writer);
    assert!(member.is_there());
}

#[test]
fn a_version_that_was_promised_for_one_name_is_told_of_the_other_that_it_gets() {
    let mut member = Member::with_one_told();
    let (writer, promise) = member.write(1, TRUNCATE);
    member.tell(promise);
    let renamed = member.rename("k2");
    member.tell(renamed);
    assert_eq!(member.told(), (3, 1));
    member.logic.close(1, writer);
    member.has_published(4);
}

#[test]
fn what_is_closed_while_there_is_nobody_else_is_found_by_who_joins_before_it_is_sealed() {
    let mut member = Member::new();
    let (writer, promise) = member.write(1, CREATE);
    member.tell(promise);
    let [other] = member.join([2]);
    member.has_announced();
    member.release(writer);
    assert!(wait::until(wait::HANG, || member.is_found_by(&other, "k")));
    assert_eq!(member.told(), (1, 0), "it is the version as which it was closed");
}

#[test]
fn what_is_told_while_there_is_nobody_else_is_found_by_who_joins_before_its_host_has_noted_that() {
    let mut member = Member::new();
    // As if it had not.
    let being_told = member.cluster.about_to_publish(b"k");
    let news = member.publish(1);
    member.tell(news);
    let [other] = member.join([2]);
    assert!(wait::until(wait::HANG, || member.is_found_by(&other, "k")));
    drop(being_told);
}

#[test]
fn a_file_that_is_removed_before_its_close_is_told_is_told_before_its_removal() {
    let mut member = Member::with_one_told();
    let (writer, promise) = member.write(1, TRUNCATE);
    let removal = member.unlink(1);
    member.tell(promise);
    assert_eq!(member.told(), (2, 0), "it hides the version before it");
    member.tell(removal);
    assert_eq!(member.told(), (2, 1));
    member.logic.close(1, writer);
    assert!(!member.is_there());
}

#[test]
fn who_comes_when_what_took_the_name_of_a_closed_file_was_removed_elsewhere_finds_nothing() {
    for exclusive in [false, true] {
        let mut member = Member::with_one_told();
        let (writer, _promise) = member.write(1, TRUNCATE);
        let second = member.publish(2);
        member.tell(second);
        member.withdraw(member.stamp("k"));
        assert!(!member.is_there());
        let another = member.logic.open(0, "k", Open { exclusive, ..CREATE }).expect("create");
        member.logic.write(0, another, 0, b"new").expect("write");
        member.logic.close(0, another);
        member.release(writer);
        assert_eq!(member.logic.stat(2, "k").expect("it is there").size, 3);
        member.has_published(3);
    }
}

/// To mkdir(2), and to a rename that replaces nothing.
#[test]
fn where_a_closed_file_stands_that_another_one_had_replaced_the_name_is_free() {
    for makes_directory in [false, true] {
        let mut member = Member::with_one_told();
        let (writer, _promise) = member.write(1, TRUNCATE);
        let second = member.publish(2);
        member.tell(second);
        member.withdraw(member.stamp("k"));
        if makes_directory {
            member.logic.mkdir(0, "k").expect("mkdir");
        } else {
            let other = member.logic.open(0, "other", CREATE).expect("create");
            member.logic.write(0, other, 0, b"new").expect("write");
            member.logic.close(0, other);
            member.logic.rename(0, "other", "k", true).expect("rename");
        }
        member.release(writer);
        assert_eq!(member.logic.stat(2, "k").expect("it is there").is_directory, makes_directory);
    }
}
