/** One file to and from a capsule over HTTP, by curl, in a process of its own. */
import { execFile } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Service } from "./service.ts";

const run = promisify(execFile);
const guestPath = "/root/file";
const chunkBytes = 1 << 20;

/** A file of random bytes on the host, which cannot be compressed. */
export async function makeFile(service: Service, sizeBytes: number): Promise<string> {
  const path = join(service.dataDir, `bench-${sizeBytes}`);
  await using file = await open(path, "w");
  for (let left = sizeBytes; left > 0; left -= chunkBytes) await file.write(randomBytes(Math.min(chunkBytes, left)));
  return path;
}

export async function upload(service: Service, id: string, file: string): Promise<void> {
  await curl(service, `/v1/capsules/${id}/files/stream/write`, ["-F", `path=${guestPath}`, "-F", `file=@${file}`]);
}

/** Throws unless `sizeBytes` bytes arrive. */
export async function download(service: Service, id: string, sizeBytes: number): Promise<void> {
  const body = ["-H", "Content-Type: application/json", "-d", JSON.stringify({ path: guestPath })];
  const said = await curl(service, `/v1/capsules/${id}/files/stream/read`, [...body, "-w", "%{size_download}"]);
  if (said !== String(sizeBytes)) throw new Error(`stream/read gave ${said} bytes instead of ${sizeBytes}`);
}

/** GET of `/` by the port's URL. Throws unless `sizeBytes` bytes arrive. */
export async function downloadByPort(service: Service, id: string, port: number, sizeBytes: number): Promise<void> {
  const { port: own } = new URL(service.url);
  const said = await curl(service, "/", ["-H", `Host: ${port}-${id}.localhost:${own}`, "-w", "%{size_download}"]);
  if (said !== String(sizeBytes)) throw new Error(`the port's URL gave ${said} bytes instead of ${sizeBytes}`);
}

/** Throws unless the file in the guest has the same SHA-256. */
export async function checkContent(service: Service, id: string, file: string): Promise<void> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(file)) hash.update(chunk as Buffer);
  const { stdout } = await service.exec(id, "sha256sum", guestPath);
  if (stdout.split(" ")[0] !== hash.digest("hex")) throw new Error("the file in the guest is not what was sent");
}

async function curl(service: Service, path: string, options: string[]): Promise<string> {
  const args = [
    "-sS",
    "--fail-with-body",
    "-o",
    "/dev/null",
    "-H",
    `X-API-Key: ${service.key}`,
    ...options,
    service.url + path,
  ];
  return (await run("curl", args)).stdout;
}
