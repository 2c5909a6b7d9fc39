/** The network of capsules, and links to their ports: options of create, network, url, ports. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Egress, NetworkOptions, NetworkState } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes, Failure } from "./failures.ts";
import { printJson, printLine, table } from "./screen.ts";
import { capsuleBy } from "./service.ts";

/** Undefined: none of its options is given. Throws UsageError. */
export function networkOptionsOf(call: Call): NetworkOptions | undefined {
  const egress = call.text("egress");
  if (egress !== undefined && egress !== "none" && egress !== "allowlist" && egress !== "public")
    throw new UsageError(`--egress takes none, allowlist or public, not ${JSON.stringify(egress)}`);
  const [allow, deny] = [call.list("allow"), call.list("deny")];
  const publicPorts = call.list("public-port").map((text) => portIn("--public-port", text));
  if (egress === undefined && allow.length + deny.length + publicPorts.length === 0) return undefined;
  return { ...(egress === undefined ? {} : { egress: egress satisfies Egress }), allow, deny, publicPorts };
}

function portIn(name: string, text: string): number {
  const port = /^[1-9][0-9]{0,4}$/.test(text) ? Number(text) : Number.NaN;
  if (port <= 65_535) return port;
  throw new UsageError(`${name} takes a port, 1 to 65535, not ${JSON.stringify(text)}`);
}

/** Without options the network is shown. With some it is replaced, but for `host_header` and `inject`, which have no option. */
export async function network(call: Call): Promise<number> {
  const options = networkOptionsOf(call);
  const capsule = await capsuleBy(await call.client(), call.words[0]!);
  let state = await capsule.network();
  const { hostHeader, inject } = state;
  if (options !== undefined) state = await capsule.setNetwork({ ...options, hostHeader, inject });
  if (call.isJson) await printJson(state);
  else await printLine(table(["FIELD", "VALUE"], rowsOf(state), process.stdout.columns));
  return exitCodes.done;
}

type Decision = NetworkState["recent"][number];

/** Decisions of each verdict. */
const recentShown = 10;

function rowsOf({ egress, allow, deny, publicPorts, hostHeader, inject, ...state }: NetworkState): string[][] {
  const { effective, counters, recent, unsupported } = state;
  const list = (values: readonly unknown[]) => values.join(", ") || "-";
  const last = (wanted: Decision["verdict"]) =>
    recent
      .filter(({ verdict }) => verdict === wanted)
      .slice(-recentShown)
      .toReversed();
  return [
    ["egress", egress],
    ["allow", list(allow)],
    ["deny", list(deny)],
    ["public ports", list(publicPorts)],
    ["host header", hostHeader ?? "-"],
    ...inject.map(({ host, headers }) => ["injected", `${host}: ${list(Object.keys(headers))}`]),
    ["in effect", `${effective.egress}${unsupported ? ", without a way out" : ""}`],
    ["connections", `${counters.connectionsTotal}, of them ${counters.connectionsOpen} open`],
    ...last("allowed").map((decision) => ["", decisionWords(decision)]),
    ["bytes", `${counters.bytesOut} out, ${counters.bytesIn} in`],
    ["denied", String(counters.deniedTotal)],
    ...last("denied").map((decision) => ["", decisionWords(decision)]),
    ...last("failed").map((decision, at) => [at === 0 ? "failed" : "", decisionWords(decision)]),
  ];
}

function decisionWords({ host, address = "-", port, reason, count }: Decision): string {
  const destination = `${host ?? address}${port === undefined ? "" : `:${port}`}`;
  return [destination, ...(reason === "" ? [] : [reason]), count === 1 ? "once" : `${count} times`].join(", ");
}

export async function url(call: Call): Promise<number> {
  const port = portIn("PORT", call.words[1]!);
  const expiresSec = call.seconds("expires");
  const capsule = await capsuleBy(await call.client(), call.words[0]!);
  const link = await capsule.url(port, expiresSec === undefined ? {} : { expiresSec });
  if (call.isJson) await printJson(link);
  else await printLine(link.url);
  if (call.isSet("open")) await openInBrowser(link.url);
  return exitCodes.done;
}

/** The browser outlives the command. Throws a Failure. */
async function openInBrowser(link: string): Promise<void> {
  const program = process.platform === "darwin" ? "open" : "xdg-open";
  const child = spawn(program, [link], { detached: true, stdio: "ignore" });
  try {
    await once(child, "spawn");
  } catch {
    throw new Failure(`no browser can be opened: there is no program ${program}`, "Open the printed link by hand.");
  }
  child.unref();
}

export async function ports(call: Call): Promise<number> {
  const capsule = await capsuleBy(await call.client(), call.words[0]!);
  const listening = await capsule.ports();
  if (call.isJson) await printJson(listening);
  else {
    const rows = listening.map(({ port, address, pid, cmd, public: isPublic, url: at }) => [
      ...[String(port), address, String(pid ?? "-"), cmd || "-"],
      ...[isPublic ? "yes" : "no", at],
    ]);
    await printLine(table(["PORT", "ADDRESS", "PID", "COMMAND", "PUBLIC", "URL"], rows, process.stdout.columns));
  }
  return exitCodes.done;
}
