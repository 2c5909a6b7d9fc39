/**
 * Runs one of Debian's tools. Its output is kept in memory and shown only when it fails. It sees only those variables of
 * this process that find programs, folders and the network, and none that could leave a trace in an image.
 */
import { spawn } from "node:child_process";

const keptBytes = 64 * 1024;
const outputMaxBytes = 64 * 1024 * 1024;

const handedOn = /^(PATH|HOME|TMPDIR|(http|https|ftp|no|all)_proxy)$/i;

export interface ProgramOptions {
  cwd?: string;
  environment?: Record<string, string>;
  /** Written to the program's standard input. */
  input?: string;
}

/** Resolves with standard output. Rejects with the end of standard error when the program does not end with 0. */
export async function runProgram(program: string, args: string[], options: ProgramOptions = {}): Promise<string> {
  const inherited = Object.fromEntries(Object.entries(process.env).filter(([name]) => handedOn.test(name)));
  const child = spawn(program, args, {
    cwd: options.cwd,
    env: { ...inherited, LC_ALL: "C.UTF-8", TZ: "UTC", ...options.environment },
    stdio: ["pipe", "pipe", "pipe"],
  });
  const output: Buffer[] = [];
  let outputBytes = 0;
  let complaints = Buffer.alloc(0);
  child.stdout.on("data", (chunk: Buffer) => {
    outputBytes += chunk.length;
    if (outputBytes > outputMaxBytes) child.kill();
    else output.push(chunk);
  });
  child.stderr.on("data", (chunk: Buffer) => {
    complaints = Buffer.concat([complaints, chunk]).subarray(-keptBytes);
  });
  child.stdin.on("error", () => {}); // a program may end without reading; its exit code tells
  child.stdin.end(options.input ?? "");

  const end = await new Promise<string>((resolve, reject) => {
    child.once("error", (cause: NodeJS.ErrnoException) => {
      reject(new Error(cause.code === "ENOENT" ? `${program} is not installed` : cause.message, { cause }));
    });
    child.once("close", (code, signal) => resolve(signal ?? String(code)));
  });
  if (end !== "0") {
    const said = [complaints.toString().trimEnd(), Buffer.concat(output).toString().slice(-keptBytes).trimEnd()];
    throw new Error(`${program} ${args.join(" ")} ended with ${end}\n${said.filter(Boolean).join("\n")}`);
  }
  return Buffer.concat(output).toString();
}
