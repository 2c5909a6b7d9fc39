//! The watched directories: by their watch descriptors, with their names, so that a directory which is renamed changes the
//! paths of all below it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::files::watching::inotify::Wd;

/// Device and inode.
pub type Identity = (u64, u64);

/// Names that scans have told; beyond it a name may be told twice.
const MAX_TOLD: usize = 65_536;

struct Node {
    /// The root is its own.
    parent: Wd,
    name: Arc<[u8]>,
    identity: Identity,
    below: BTreeMap<Arc<[u8]>, Wd>,
}

#[derive(Default)]
pub struct Tree {
    root: Wd,
    nodes: BTreeMap<Wd, Node>,
    /// Names that were told since there were no events left: their own events may follow.
    told: BTreeSet<(Wd, Vec<u8>)>,
}

impl Tree {
    pub fn new(root: Wd, identity: Identity) -> Tree {
        let mut tree = Tree {
            root,
            ..Tree::default()
        };
        tree.nodes.insert(root, Node::new(root, &[], identity));
        tree
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn root(&self) -> Wd {
        self.root
    }

    pub fn has(&self, wd: Wd) -> bool {
        self.nodes.contains_key(&wd)
    }

    pub fn identity(&self, wd: Wd) -> Option<Identity> {
        self.nodes.get(&wd).map(|node| node.identity)
    }

    pub fn child(&self, wd: Wd, name: &[u8]) -> Option<Wd> {
        self.nodes.get(&wd)?.below.get(name).copied()
    }

    /// The names from the root down to it; none for the root.
    pub fn names(&self, wd: Wd) -> Option<Vec<Arc<[u8]>>> {
        let mut names = Vec::new();
        let mut at = wd;
        while at != self.root {
            let node = self.nodes.get(&at)?;
            names.push(node.name.clone());
            at = node.parent;
        }
        names.reverse();
        Some(names)
    }

    /// False: by the events so far it would lie in itself, so that these do not tell where it is.
    pub fn insert(&mut self, parent: Wd, name: &[u8], wd: Wd, identity: Identity) -> bool {
        if self.nodes.contains_key(&wd) {
            return self.place(wd, parent, name);
        }
        let node = Node::new(parent, name, identity);
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.below.insert(node.name.clone(), wd);
            self.nodes.insert(wd, node);
        }
        true
    }

    /// Gives a directory another place. False: see `insert`.
    pub fn place(&mut self, wd: Wd, parent: Wd, name: &[u8]) -> bool {
        if wd == self.root || self.is_within(parent, wd) {
            return false;
        }
        self.detach(wd);
        let name: Arc<[u8]> = name.into();
        if let Some(node) = self.nodes.get_mut(&wd) {
            node.parent = parent;
            node.name = name.clone();
        }
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.below.insert(name, wd);
        }
        true
    }

    /// Removes a directory and all below it, and returns them.
    pub fn remove(&mut self, wd: Wd) -> Vec<Wd> {
        self.detach(wd);
        let mut removed = Vec::new();
        let mut left = vec![wd];
        while let Some(wd) = left.pop() {
            if let Some(node) = self.nodes.remove(&wd) {
                left.extend(node.below.values());
                removed.push(wd);
            }
        }
        removed
    }

    fn is_within(&self, mut wd: Wd, other: Wd) -> bool {
        while wd != other && wd != self.root {
            match self.nodes.get(&wd) {
                Some(node) => wd = node.parent,
                None => return false,
            }
        }
        wd == other
    }

    fn detach(&mut self, wd: Wd) {
        let Some((parent, name)) = self.nodes.get(&wd).map(|it| (it.parent, it.name.clone()))
        else {
            return;
        };
        if let Some(above) = self.nodes.get_mut(&parent) {
            if above.below.get(&name) == Some(&wd) {
                above.below.remove(&name);
            }
        }
    }

    // ---- Names told by scans

    pub fn note_told(&mut self, wd: Wd, name: &[u8]) {
        if self.told.len() < MAX_TOLD {
            self.told.insert((wd, name.to_vec()));
        }
    }

    /// True once for a name that was told.
    pub fn take_told(&mut self, wd: Wd, name: &[u8]) -> bool {
        !self.told.is_empty() && self.told.remove(&(wd, name.to_vec()))
    }

    pub fn forget_told(&mut self) {
        self.told.clear();
    }
}

impl Node {
    fn new(parent: Wd, name: &[u8], identity: Identity) -> Node {
        Node {
            parent,
            name: name.into(),
            identity,
            below: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(tree: &Tree, wd: Wd) -> String {
        let names = tree.names(wd).unwrap();
        let names: Vec<_> = names.iter().map(|it| String::from_utf8_lossy(it)).collect();
        names.join("/")
    }

    #[test]
    fn directories_keep_what_is_below_them() {
        let mut tree = Tree::new(1, (0, 1));
        for (parent, name, wd) in [(1, "a", 2), (2, "b", 3), (3, "c", 4), (1, "d", 5)] {
            assert!(tree.insert(parent, name.as_bytes(), wd, (0, wd as u64)));
        }
        assert_eq!(path(&tree, 4), "a/b/c");
        assert!(tree.place(3, 5, b"moved"));
        assert_eq!(path(&tree, 4), "d/moved/c");
        assert_eq!(
            (tree.child(2, b"b"), tree.child(5, b"moved")),
            (None, Some(3))
        );
        assert!(!tree.place(5, 4, b"loop"), "it would lie in itself");
        assert!(!tree.place(1, 2, b"root"));
        let mut removed = tree.remove(5);
        removed.sort_unstable();
        assert_eq!((removed, tree.count()), (vec![3, 4, 5], 2));
        assert!(tree.names(4).is_none() && tree.child(1, b"d").is_none());
    }

    #[test]
    fn a_told_name_is_taken_once() {
        let mut tree = Tree::new(1, (0, 1));
        tree.note_told(1, b"file");
        assert!(tree.take_told(1, b"file") && !tree.take_told(1, b"file"));
        tree.note_told(1, b"file");
        tree.forget_told();
        assert!(!tree.take_told(1, b"file"));
    }
}
