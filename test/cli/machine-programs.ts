/** Programs of this machine for a capsule, with their loader and libraries: the two may have different ones. */
import { execFileSync } from "node:child_process";
import { copyFileSync } from "node:fs";
import { basename, join } from "node:path";

/** Copies a program into a folder, and gives the words that start it where the folder is `inside` then. */
export function bundle(folder: string, program: string, inside: string): string[] {
  const needed = execFileSync("ldd", [program], { encoding: "utf8" });
  const files = [...needed.matchAll(/(?:=> |^\s*)(\/\S+) \(0x/gm)].map(([, path = ""]) => path);
  for (const file of [...files, program]) copyFileSync(file, join(folder, basename(file)));
  const loader = files.map((file) => basename(file)).find((file) => file.startsWith("ld-"));
  return [`${inside}/${loader}`, "--library-path", inside, `${inside}/${basename(program)}`];
}
