/**
 * Installs in a capsule from archives (archives.ts), as users type them. Each script prints the SHA-256 of what it installed, and can be
 * repeated.
 */
import assert from "node:assert/strict";
import type { TestCapsule } from "../client.ts";
import { patient } from "./whole-world.ts";

export const installs = {
  curl: `
    curl -fsS https://files.archives.example/payload | head -c 200000 > payload || true
    curl -fsS -C - -o payload https://files.archives.example/payload
    sha256sum payload`,
  git: `
    git clone -q https://git.archives.example/made.git made
    sha256sum made/payload`,
  apt: `
    apt-get -qq purge made >/dev/null 2>&1 || true
    apt-get -qq update && apt-get -qq -o Dpkg::Use-Pty=0 install made >/dev/null
    sha256sum /usr/share/made/payload`,
  pip: `
    pip -q install --no-cache-dir --target made --index-url https://pip.archives.example/simple made
    sha256sum made/made/payload`,
} as const;

/** Makes the capsule trust the archives, and apt use theirs. */
export async function useArchives(capsule: TestCapsule, certificate: string): Promise<void> {
  await capsule.sh("cat >> /etc/ssl/certs/ca-certificates.crt", { ...patient, stdin: certificate });
  await capsule.sh("echo 'deb [trusted=yes] http://apt.archives.example/ ./' > /etc/apt/sources.list", patient);
}

/** The script in a folder of its own; it fails as soon as a part of it does. */
export const inOwnFolder = (script: string) =>
  `set -eo pipefail; folder=$(mktemp -d); trap 'rm -rf $folder' EXIT; cd $folder; ${script}`;

/** Standard output of a script that runs in a folder of its own. */
export async function inFolder(capsule: TestCapsule, script: string): Promise<string> {
  const args = ["-c", inOwnFolder(script)];
  const { stdout, stderr, exit_code } = await capsule.run("bash", args, patient);
  assert.equal(exit_code, 0, `${script}\n${stdout}${stderr}`);
  return stdout.trim();
}

/** The SHA-256 that a script has printed. */
export async function installed(capsule: TestCapsule, script: string): Promise<string> {
  return (await inFolder(capsule, script)).slice(0, 64);
}
