/** The clients and proxies that the tests know: how each is started, what it speaks, and which package brings it. */
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { isAll } from "./clients-form.ts";

export interface KnownClient {
  name: string;
  command: [string, ...string[]];
  /** The scenarios that it runs. */
  speaks: ("http" | "sockets")[];
  /** Succeeds where the client is installed. */
  probe: [string, ...string[]];
  package: string;
  /** The steps that it cannot do, as docs/CLIENTS.md says: steps that end otherwise than for all others. */
  differs?: Record<string, object>;
  /** Run by CI; the others only with CAPSULE_CLIENTS=all. */
  isUsual: boolean;
}

/** Debian's own, which has Debian's packages; another one may come first in PATH. */
export const python = existsSync("/usr/bin/python3") ? "/usr/bin/python3" : "python3";
const here = (path: string) => join(import.meta.dirname, path);

function pythonClient(module: string, speaks: KnownClient["speaks"]): KnownClient {
  return {
    name: `Python ${module}`,
    command: [python, here(`python/${module}_client.py`)],
    speaks,
    probe: [python, "-c", `import ${module}`],
    package: module === "urllib" ? "python3" : `python3-${module}`,
    isUsual: true,
  };
}

function nodeClient(name: string, speaks: KnownClient["speaks"]): KnownClient {
  const command: KnownClient["command"] = [process.execPath, here(`node/${name}.ts`)];
  return { name, command, speaks, probe: [process.execPath, "--version"], package: name, isUsual: true };
}

function shellClient(name: string): KnownClient {
  const command: KnownClient["command"] = ["bash", here(`shell/${name}.sh`)];
  return { name, command, speaks: ["http"], probe: [name, "--version"], package: name, isUsual: true };
}

export const knownClients: KnownClient[] = [
  shellClient("curl"),
  { ...shellClient("wget"), differs: { "401": { answer: [401, null] } } },
  pythonClient("urllib", ["http"]),
  pythonClient("requests", ["http"]),
  pythonClient("httpx", ["http"]),
  pythonClient("aiohttp", ["http", "sockets"]),
  pythonClient("websockets", ["sockets"]),
  nodeClient("undici", ["http", "sockets"]),
  nodeClient("axios", ["http"]),
  nodeClient("ws", ["sockets"]),
  {
    name: "Go net/http",
    command: ["go", "run", here("go/main.go")],
    speaks: ["http"],
    probe: ["go", "version"],
    package: "golang-go",
    isUsual: false,
  },
  {
    name: "Ruby net/http",
    command: ["ruby", here("ruby/net_http.rb")],
    speaks: ["http"],
    probe: ["ruby", "--version"],
    package: "ruby",
    isUsual: false,
  },
  {
    name: "Perl Mojolicious",
    command: ["/usr/bin/perl", here("perl/mojo.pl")],
    speaks: ["http", "sockets"],
    probe: ["/usr/bin/perl", "-MMojolicious", "-e", "1"],
    package: "libmojolicious-perl",
    isUsual: false,
  },
  {
    name: "PHP curl",
    command: ["php", "-d", "memory_limit=-1", here("php/curl.php")],
    speaks: ["http"],
    probe: ["php", "-r", "exit(extension_loaded('curl') ? 0 : 1);"],
    package: "php-cli php-curl",
    isUsual: false,
  },
  {
    name: "Java HttpClient",
    command: ["java", here("java/Scenario.java")],
    speaks: ["http", "sockets"],
    probe: ["javac", "--version"],
    package: "default-jdk-headless",
    isUsual: false,
  },
];

/** Why this one is left out of the run, or false. */
export function missing({ probe, package: from, isUsual }: Pick<KnownClient, "probe" | "package" | "isUsual">) {
  if (!isUsual && !isAll) return "only with CAPSULE_CLIENTS=all";
  return spawnSync(probe[0], probe.slice(1)).status === 0 ? false : `not installed; ${from} brings it`;
}
