/**
 * `capsule shell`: connects this terminal to one in a capsule. Keys are passed on raw, except for Ctrl-]: it is the
 * prefix of this program's own keys.
 */
import { type Capsule, hasCode, type Pty, type PtyConnection, type PtyOptions } from "../sdk/sdk.ts";
import type { Call } from "./command.ts";
import { commandOptions } from "./exec.ts";
import { exitCodes, Failure } from "./failures.ts";
import { note, printJson } from "./screen.ts";
import { capsuleBy } from "./service.ts";
import { relayTerminal, sizeHere } from "./terminal.ts";

const escapeKey = 0x1d;
const detachKeys = new Set(["d", "D", "\x04"].map((key) => key.charCodeAt(0)));

export async function shell(call: Call): Promise<number> {
  const { stdin, stdout } = process;
  if (!stdin.isTTY || !stdout.isTTY)
    throw new Failure(
      "shell needs a terminal as standard input and output",
      "Without one, run commands: capsule exec ID -- CMD …",
    );
  const capsule = await capsuleBy(await call.client({ streams: true }), call.words[0]!);
  const [cmd, ...args] = call.rest;
  const tag = call.text("tag");
  const onState = (state: "live" | "reconnecting") => {
    if (state === "reconnecting") stdout.write("\r\n[the connection was lost; reconnecting]\r\n");
  };
  const start = {
    ...sizeHere(),
    ...(cmd === undefined ? {} : { cmd, args }),
    ...commandOptions(call),
  };
  const pty = await sessionOf(capsule, tag, start, { onState });
  const end = await joined(pty).catch((error) => {
    if (!hasCode(error, "invalid_state")) throw error;
    const commands = `capsule resume ${capsule.id} && capsule shell ${capsule.id} --tag ${pty.tag}`;
    throw new Failure(error.message, `The session ${pty.tag} goes on after a resume: ${commands}`);
  });
  if (call.isJson) await printJson({ tag: pty.tag, exitCode: pty.exitCode ?? null });
  else if (end === "detached") note(`Detached. Join it again: capsule shell ${capsule.id} --tag ${pty.tag}`);
  return pty.exitCode ?? exitCodes.done;
}

/** The session with this tag; if there is none, or a command is given, a new one. */
async function sessionOf(
  capsule: Capsule,
  tag: string | undefined,
  start: PtyOptions,
  connection: PtyConnection,
): Promise<Pty> {
  if (tag === undefined) return await capsule.pty({ ...start, ...connection });
  const named = () => capsule.pty({ ...start, tag, ...connection });
  if (start.cmd !== undefined) return await named();
  return await capsule.rejoin(tag, connection).catch((error) => {
    if (!hasCode(error, "not_found")) throw error;
    return named();
  });
}

async function joined(pty: Pty): Promise<"ended" | "detached"> {
  let isDetached = false;
  const keys = new Keys(() => {
    isDetached = true;
    pty.detach();
  });
  try {
    await relayTerminal(pty, keys);
  } catch (error) {
    if (!isDetached) throw error;
  } finally {
    if (pty.exitCode === undefined) process.stdout.write("\r\n");
  }
  return isDetached ? "detached" : "ended";
}

/** Ctrl-] d detaches, Ctrl-] Ctrl-] types Ctrl-]; before any other key Ctrl-] is passed on as well. */
export class Keys {
  readonly #onDetach: () => void;
  #isEscaped = false;

  constructor(onDetach: () => void) {
    this.#onDetach = onDetach;
  }

  /** The bytes to pass on. */
  typed(bytes: Uint8Array): Uint8Array {
    const kept: number[] = [];
    for (const byte of bytes) {
      if (this.#isEscaped) {
        this.#isEscaped = false;
        if (detachKeys.has(byte)) {
          this.#onDetach();
          break;
        }
        if (byte !== escapeKey) kept.push(escapeKey);
        kept.push(byte);
      } else if (byte === escapeKey) this.#isEscaped = true;
      else kept.push(byte);
    }
    return Uint8Array.from(kept);
  }
}
