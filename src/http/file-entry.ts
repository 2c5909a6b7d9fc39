/** A file of a guest, as a listing shows it. */
import type { GuestEntry } from "../agent/agent.ts";
import type { FileEntry } from "../wire/file.ts";

export function entryBody(entry: GuestEntry): FileEntry {
  return {
    name: entry.name,
    path: entry.path,
    type: entry.type,
    size: entry.size,
    permissions: permissionsOf(entry.mode),
    owner: entry.owner,
    group: entry.group,
    modified_at: entry.mtime,
    symlink_target: entry.target,
  };
}

/** Indexed by the four highest bits of st_mode: fifo, character device, directory, block device, file, link, socket. */
const typeLetters = "?pc?d?b?-?l?s???";

/** As `ls -l` writes it. */
export function permissionsOf(mode: number): string {
  return (
    typeLetters.charAt((mode >> 12) & 15) +
    triple(mode >> 6, (mode & 0o4000) !== 0, "s") +
    triple(mode >> 3, (mode & 0o2000) !== 0, "s") +
    triple(mode, (mode & 0o1000) !== 0, "t")
  );
}

/** `special` takes the place of x: in lower case if x is set too, else in upper case. */
function triple(bits: number, isSpecial: boolean, special: string): string {
  const executes = (bits & 1) !== 0;
  const last = isSpecial ? (executes ? special : special.toUpperCase()) : executes ? "x" : "-";
  return (bits & 4 ? "r" : "-") + (bits & 2 ? "w" : "-") + last;
}
