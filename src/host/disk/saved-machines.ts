/** The machines of everything in the data folder that has been a VM: what restores it has to stay. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { Machine } from "../../vmm/vmm.ts";
import { capsuleName } from "./capsule-folder.ts";
import { fileNames } from "./checkpoint-folder.ts";
import { isObject } from "./fields.ts";
import { readJson } from "./files.ts";
import { decodeMachine } from "./machine-record.ts";
import type { Paths } from "./paths.ts";

/** Of the bases, templates, or capsules, also running ones. Calls `onDamage` for a file that cannot be read. */
export async function savedMachines(
  paths: Paths,
  room: "bases" | "templates" | "capsules",
  onDamage: (error: unknown) => void,
): Promise<Machine[]> {
  const machines: Machine[] = [];
  const file = room === "capsules" ? capsuleName : fileNames.manifest;
  for (const name of await readdir(paths[room])) {
    try {
      const value = await readJson<unknown>(join(paths[room], name, file));
      if (value === undefined) continue;
      if (!isObject(value)) throw new Error(`${room}/${name}/${file} is no object`);
      machines.push(decodeMachine(value.machine, Number(value.format)));
    } catch (error) {
      onDamage(error);
    }
  }
  return machines;
}
