/**
 * Queries this machine's apt for the mirrors that its operator configured and the package versions that they offer. The
 * image is built from the same mirrors, so this project contains no mirror's address.
 */
import { runProgram } from "./program.ts";

export interface AptSource {
  uri: string;
  /** "bookworm", "bookworm-security", … */
  suite: string;
  components: string[];
}

export async function architecture(): Promise<string> {
  return (await runProgram("dpkg", ["--print-architecture"])).trim();
}

let refreshed: Promise<void> | undefined;

/** Fetches the mirrors' indexes once per build. Without root, the build uses the existing indexes. */
export function refreshIndexes(): Promise<void> {
  refreshed ??= process.getuid?.() === 0 ? runProgram("apt-get", ["-q", "update"]).then(() => {}) : Promise.resolve();
  return refreshed;
}

/** The machine's sources of one Debian release: the release itself, its updates and its security fixes, and `more`. */
export async function releaseSources(release: string, more: string[] = []): Promise<AptSource[]> {
  const format = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)";
  const targets = await runProgram("apt-get", ["indextargets", "--format", format, "Created-By: Packages"]);
  const sources = parseTargets(targets, release, more);
  if (!sources.some((source) => source.suite === release)) {
    throw new Error(`apt on this machine has no source for Debian ${release}; check /etc/apt and run: apt-get update`);
  }
  return sources;
}

export function parseTargets(text: string, release: string, more: string[] = []): AptSource[] {
  const suites = [release, `${release}-updates`, `${release}-security`, ...more];
  const sources = new Map<string, AptSource>();
  for (const line of text.split("\n")) {
    const [uri, suite, component, origin] = line.split("|");
    if (!uri || !suite || !component || !origins.includes(origin ?? "") || !suites.includes(suite)) continue;
    const key = `${uri} ${suite}`;
    const source = sources.get(key) ?? { uri, suite, components: [] };
    if (!source.components.includes(component)) source.components.push(component);
    sources.set(key, source);
  }
  return [...sources.values()].sort((a, b) => suites.indexOf(a.suite) - suites.indexOf(b.suite));
}

/** Debian's name for itself, and for its backports. */
const origins = ["Debian", "Debian Backports"];

export function sourceLine({ uri, suite, components }: AptSource): string {
  return `deb ${uri} ${suite} ${components.join(" ")}`;
}

/** The proxies of the machine's apt, as options for another apt. */
export async function proxyOptions(): Promise<string[]> {
  const dump = await runProgram("apt-config", ["dump", "--format", '%f "%v";%n']);
  return dump.split("\n").filter((line) => /^Acquire::(http|https|ftp)::proxy(::\S+)? "[^"]+";$/i.test(line));
}

export interface Package {
  name: string;
  version: string;
}

/** The kernel package that a metapackage such as linux-image-cloud-amd64 depends on. */
export async function kernelCandidate(metapackage: string): Promise<Package> {
  const policy = await runProgram("apt-cache", ["policy", metapackage]);
  const candidate = /^\s*Candidate: (\S+)$/m.exec(policy)?.[1];
  if (candidate === undefined || candidate === "(none)") {
    throw new Error(`apt on this machine does not know ${metapackage}; run: apt-get update`);
  }
  return parseKernel(await runProgram("apt-cache", ["show", `${metapackage}=${candidate}`]), metapackage);
}

export function parseKernel(show: string, metapackage: string): Package {
  const depends = /^Depends: .*?\b(linux-image-\d\S*) \(= (\S+)\)/m.exec(show);
  if (depends === null) throw new Error(`${metapackage} depends on no kernel image`);
  return { name: depends[1]!, version: depends[2]! };
}

/** Downloads and verifies one package; resolves with the file's name in `folder`. */
export async function downloadPackage(wanted: Package, folder: string): Promise<void> {
  const args = ["-q", "-o", "APT::Sandbox::User=root", "download", `${wanted.name}=${wanted.version}`];
  await runProgram("apt-get", args, { cwd: folder });
}
