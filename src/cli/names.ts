/**
 * Names of files, here and in capsules, in the text form of the API: a name is bytes, and a byte that is no UTF-8 stands as
 * a character of its own. So a copy has the names of the original, whatever their bytes.
 */
import { bytesOfName, nameFromBytes } from "../sdk/sdk.ts";

/** A path of the command line. */
export function named(argument: string): string {
  return nameFromBytes(Buffer.from(argument));
}

/** A path of this machine, as the file system takes it. */
export function onDisk(path: string): Buffer {
  return Buffer.from(bytesOfName(path));
}

/** A path as an argument of a script that begins with `readPaths`. */
export function scriptWord(path: string): string {
  const bytes = onDisk(path);
  if (!path.includes("\\") && bytes.equals(Buffer.from(path))) return path;
  return [...bytes].map((byte) => `\\0${byte.toString(8).padStart(3, "0")}`).join("");
}

/** Turns the arguments of a shell script back into paths. An `x` keeps the line ends of a name from the substitution. */
export const readPaths = `count=$#; for word; do
  case $word in *\\\\*) word=$(printf %bx "$word"); word=\${word%x};; esac
  set -- "$@" "$word"
done; shift $count; `;
