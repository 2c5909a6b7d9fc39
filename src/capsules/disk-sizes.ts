/** The sizes of disks that the rows of earlier releases lack, from the files. */
import type { CapsuleRows } from "../db/capsule-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Host } from "../host/host.ts";

export interface DiskSizesOptions {
  capsuleRows: CapsuleRows;
  templateRows: TemplateRows;
  host: Pick<Host, "diskMb" | "images">;
}

/** A capsule without a disk has that of its template, of which a later start would make one. */
export function fillDiskSizes({ capsuleRows, templateRows, host }: DiskSizesOptions): void {
  const images = host.images();
  const ofImage = (name: string) => (images.find((image) => image.name === name) ?? images[0])?.diskMb ?? 0;
  for (const { storage, name, diskMb } of templateRows.all())
    if (diskMb === 0) templateRows.setDiskSize(storage, host.diskMb("templates", storage) ?? ofImage(name));
  for (const { id, storage, template } of capsuleRows.withoutDiskSize()) {
    const ofTemplate = storage === null ? undefined : host.diskMb("templates", storage);
    capsuleRows.setDiskSize(id, host.diskMb("capsules", id) ?? ofTemplate ?? ofImage(template));
  }
}
