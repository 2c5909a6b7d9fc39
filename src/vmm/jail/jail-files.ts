/** Owners and modes of the files of jails, so that a jail's user can open what its profile lists and nothing else. */
import { constants } from "node:fs";
import { chmod, chown, open, stat } from "node:fs/promises";
import { CapsuleError } from "../../wire/errors.ts";

/** Makes the jail's user the owner of a file. No jail can replace the file first: none sees the folder around it. */
export async function chownFile(path: string, uid: number): Promise<void> {
  await using file = await open(path, constants.O_RDWR | constants.O_NOFOLLOW);
  await file.chown(uid, uid);
  await file.chmod(0o600);
}

/** Lets a jail's user, through its group, open files in a folder of root by name; it can neither list nor write it. */
export async function allowTraversal(path: string, gid: number): Promise<void> {
  await chown(path, 0, gid);
  await chmod(path, 0o710);
}

/** Makes root the owner of a regular file and lets the jails' group read it, unless it is readable already. */
export async function share(path: string, readers: number): Promise<void> {
  const { mode, uid, gid } = await stat(path);
  const isReadable = (mode & 0o004) !== 0 || (uid === 0 && gid === readers && (mode & 0o040) !== 0);
  if (isReadable || (mode & constants.S_IFMT) !== constants.S_IFREG) return;
  await chown(path, 0, readers);
  await chmod(path, (mode & 0o700) | ((mode & 0o500) >> 3));
}

/** The group that may use a device. Throws CapsuleError when only root may. */
export async function groupOf(device: string): Promise<number> {
  const { mode, gid } = await stat(device);
  if ((mode & 0o060) === 0o060) return gid;
  throw new CapsuleError("internal_error", `${device} is closed to the users of VMs`);
}
