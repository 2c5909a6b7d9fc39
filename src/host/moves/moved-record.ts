/** The record of a moved capsule, made from its files, which are checked here as far as one file can contradict another. */

import type { CapsuleFile } from "../disk/capsule-folder.ts";
import { encodeMachine } from "../disk/machine-record.ts";
import { type Manifest, manifestFormat } from "../disk/manifest.ts";
import type { MovedLayer, MovedRecord } from "./moved-folders.ts";

const name = "[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}";
const parentPattern = new RegExp(`^(bases|templates)/(${name})$`);
const imagePattern = new RegExp(`^${name}$`);

/** Throws an Error that says what is wrong. `rootBytes`: size of the image's root disk, asked for when the rest is right. */
export function recordOf(capsule: CapsuleFile, manifest: Manifest, rootBytes: () => number): MovedRecord {
  const { format, kind, revision, agent, layers, image, machine } = manifest;
  if (format !== manifestFormat || kind !== "pause" || revision === null)
    throw new Error(`its checkpoint is a ${kind} of format ${format}, revision ${revision}`);
  const [layer, more] = layers;
  if (layer === undefined || more !== undefined) throw new Error(`its checkpoint stands on ${layers.length} images`);
  if (image.name !== capsule.image.name || image.hash !== capsule.image.hash)
    throw new Error("its checkpoint stands on another image than its disk");
  const [encoded, own] = [machine, capsule.machine].map((each) => JSON.stringify(encodeMachine(each)));
  if (encoded !== own) throw new Error("its checkpoint was saved on another machine than its capsule.json says");
  parentOf(capsule.parent);
  return {
    ...{ format, revision, protocol: agent.protocol, machine: encodeMachine(machine) },
    ...{ image: layer.key, imageSha256: layer.sha256 },
    ...{ parent: capsule.parent, parentSha256: capsule.parentSha256 },
    ...{ diskBytes: capsule.diskBytes ?? rootBytes(), hasOwnMachine: capsule.hasOwnMachine === true },
  };
}

/** Throws an Error unless it names a folder beside the capsules'. */
export function parentOf(parent: string): { kind: "base" | "template"; key: string } {
  const [, folder, key] = parentPattern.exec(parent) ?? [];
  if (key === undefined) throw new Error(`it was started from ${JSON.stringify(parent)}`);
  return { kind: folder === "bases" ? "base" : "template", key };
}

/** Throws an Error where its name or hash could lead out of the images. */
export function requireImageNames({ name: image, hash }: CapsuleFile["image"]): void {
  if (![image, hash].every((each) => imagePattern.test(each)))
    throw new Error(`its image is ${JSON.stringify(`${image}/${hash}`)}`);
}

/** Layers below the files, bottom first. */
export function layersOf(record: MovedRecord): MovedLayer[] {
  const { image, imageSha256, parent, parentSha256, machine } = record;
  const build = machine.qemu_build;
  const qemu = typeof build === "string" ? [{ kind: "qemu" as const, key: build, sha256: null }] : [];
  return [{ kind: "image", key: image, sha256: imageSha256 }, ...qemu, { ...parentOf(parent), sha256: parentSha256 }];
}
