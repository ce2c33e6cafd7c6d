//! Engines in processes of their own, and what happens to them: networks that fail, peers that die or stand still,
//! strangers that send anything, and a thousand peers that do nothing.
//!
//! The other processes are this test program again, told by its environment to be a peer (see `child`). Networks are made
//! of network namespaces that live as long as a process that holds them, so nothing stays behind, however a test ends.

mod child;
mod crowd;
mod death;
mod load;
mod network;
mod orders;
mod pattern;
mod peer;
mod shaped;
mod soak;
mod strangers;
