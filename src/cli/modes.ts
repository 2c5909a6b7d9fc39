/** The modes that `capsule cp` keeps: permissions of files and folders, and of folders also setgid and sticky. */
import type { FileEntry } from "../sdk/sdk.ts";

/** The mode of a new file that the service writes. */
export const newFileMode = 0o644;
/** While a copy is under way, nobody else can open it. */
export const modesOfCopy = { file: 0o600, folder: 0o700 } as const;

const permissionBits = 0o777;
const [setgid, sticky] = [0o2000, 0o1000];

/** Setuid and setgid of a file are left out, since the copy has another owner. */
export function keptMode(mode: number, isFolder: boolean): number {
  return mode & (isFolder ? permissionBits | setgid | sticky : permissionBits);
}

/** `drwxr-s--T`, as a listing has it, as a number. */
export function modeOf({ permissions }: FileEntry): number {
  const letters = [...permissions.slice(1, 10)];
  const bits = letters.reduce((mode, letter) => mode * 2 + (/[rwxst]/.test(letter) ? 1 : 0), 0);
  const special = (/[sS]/.test(letters[5] ?? "") ? setgid : 0) | (/[tT]/.test(letters[8] ?? "") ? sticky : 0);
  return keptMode(bits | special, permissions.startsWith("d"));
}
