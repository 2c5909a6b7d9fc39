/**
 * Commands in the machine: by ssh, through its forwarded port, with the key of its root disk. A key exchange takes two
 * seconds under emulation, so root's commands share one connection while that is up.
 */
import { spawn } from "node:child_process";
import { treePath } from "./tree-disks.ts";

const outputMaxBytes = 16 * 2 ** 20;

export interface Door {
  port: number;
  key: string;
  /** The socket of the connection that root's commands share. */
  socket: string;
}

export interface RunOptions {
  /** Default: root, or the ordinary user of a rootless machine. */
  user?: "root" | "tester";
  /** Written to the command's standard input. */
  input?: string;
  /** As `input`, once the command has written something. */
  onReady?: () => string;
  /** Default: none. The command's connection ends then. */
  deadlineMs?: number;
  /** Standard input, output and error of this process are the command's. */
  isInteractive?: boolean;
}

export interface Outcome {
  /** The command's exit code; 255 when the connection failed. */
  code: number;
  stdout: string;
  stderr: string;
}

export function sshArgs({ port, key }: Door, user: string): string[] {
  const options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=30"];
  const fixed = ["IdentitiesOnly=yes", "BatchMode=yes", "ServerAliveInterval=30", "ServerAliveCountMax=10"];
  return [
    "-F",
    "none",
    "-i",
    key,
    "-p",
    String(port),
    ...[...options, ...fixed].flatMap((each) => ["-o", each]),
    `${user}@127.0.0.1`,
  ];
}

/** ssh's own bound on a socket's path, which it makes under another name first. */
const pathMaxBytes = 85;

function shared({ socket }: Door, user: string): string[] {
  return user === "root" && Buffer.byteLength(socket) <= pathMaxBytes ? ["-S", socket] : [];
}

/** Opens the connection that commands of root share. It ends with the machine. */
export function shareConnection(door: Door): void {
  const socket = shared(door, "root");
  if (socket.length === 0) return;
  spawn("ssh", ["-N", "-M", ...socket, ...sshArgs(door, "root")], { detached: true, stdio: "ignore" }).unref();
}

/** Runs a shell command in the working tree. Rejects only when there is no ssh here. */
export async function ssh(door: Door, command: string, options: RunOptions & { user: string }): Promise<Outcome> {
  const terminal = options.isInteractive && process.stdin.isTTY ? ["-t"] : [];
  const inTree = command === "" ? `cd ${treePath}; exec $SHELL -l` : `cd ${treePath} && ${command}`;
  const child = spawn(
    "ssh",
    [...terminal, ...shared(door, options.user), ...sshArgs(door, options.user), "--", inTree],
    {
      stdio: options.isInteractive ? "inherit" : "pipe",
      timeout: options.deadlineMs,
      killSignal: "SIGKILL",
    },
  );
  const output = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name]?.setEncoding("utf8").on("data", (text: string) => {
      output[name] = (output[name] + text).slice(-outputMaxBytes);
    });
  }
  child.stdin?.on("error", () => {}); // a command may end without reading
  if (options.onReady === undefined) child.stdin?.end(options.input ?? "");
  else child.stdout?.once("data", () => child.stdin?.end(options.onReady?.()));
  const code = await new Promise<number>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (status) => resolve(status ?? 255));
  });
  return { code, ...output };
}
