//! The lines of /etc/hosts with another name of this machine.

/// `hosts` with the old name replaced by the new one; without the old name, with a new line if it needs one. All other lines
/// stay byte for byte.
pub fn hosts_with(hosts: &[u8], old: &[u8], new: &[u8], needs_line: bool) -> Vec<u8> {
    if hosts.split(is_newline).any(|line| names(line, new)) {
        return hosts.to_vec();
    }
    let is_replaceable = !old.is_empty() && old != b"localhost";
    let has_old = |line: &[u8]| is_replaceable && names(line, old);
    let has_name = hosts.split(is_newline).any(has_old);
    if !has_name && !needs_line {
        return hosts.to_vec();
    }
    let mut text = Vec::with_capacity(hosts.len() + 64);
    for line in hosts.split_inclusive(is_newline) {
        if has_old(line) {
            let renamed = fields(line).map(|field| if field == old { new } else { field });
            text.extend(renamed.collect::<Vec<_>>().join(&b' '));
        } else {
            text.extend(line.strip_suffix(b"\n").unwrap_or(line));
        }
        text.push(b'\n');
    }
    if !has_name {
        text.extend([b"127.0.1.1 ".as_slice(), new, b"\n"].concat());
    }
    text
}

fn is_newline(byte: &u8) -> bool {
    *byte == b'\n'
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
}

/// Whether the line gives this name to an address.
fn names(line: &[u8], name: &[u8]) -> bool {
    let entry = line.split(|&byte| byte == b'#').next().unwrap_or(line);
    fields(entry).skip(1).any(|field| field == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_keeps_foreign_lines() {
        let with = |hosts: &str, old: &str| {
            let text = hosts_with(hosts.as_bytes(), old.as_bytes(), b"cl-1", true);
            String::from_utf8(text).unwrap()
        };
        let hosts = "127.0.0.1 localhost capsule\n# capsule in a comment\n10.0.0.1 db\n";
        assert_eq!(
            with(hosts, "capsule"),
            "127.0.0.1 localhost cl-1\n# capsule in a comment\n10.0.0.1 db\n"
        );
        assert_eq!(with("10.0.0.1 db", "x"), "10.0.0.1 db\n127.0.1.1 cl-1\n");
        assert_eq!(with("127.0.1.1 cl-1", "x"), "127.0.1.1 cl-1");
        assert_eq!(with("", ""), "127.0.1.1 cl-1\n");
    }

    #[test]
    fn hosts_may_hold_bytes_that_are_not_utf8() {
        let hosts = b"10.0.0.1 db # gr\xfc\xdfe\n127.0.1.1 old\n";
        assert_eq!(
            hosts_with(hosts, b"old", b"cl-1", false),
            b"10.0.0.1 db # gr\xfc\xdfe\n127.0.1.1 cl-1\n"
        );
    }
}
