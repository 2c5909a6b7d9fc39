//! The guest's end of the network: a process of its own, which ends the connections of the guest's programs and passes their
//! bytes to the relay on the host. docs/NETWORK-PROTOCOL.md is the contract.

pub mod wire;
