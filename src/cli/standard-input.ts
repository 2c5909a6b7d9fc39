/** This program's standard input, for commands in capsules. */
import { fstatSync, statSync } from "node:fs";
import { devNull } from "node:os";
import type { OutputStream } from "../sdk/sdk.ts";
import { messageOf } from "../wire/errors.ts";
import { note } from "./screen.ts";

/** Passed on: it is no terminal and not /dev/null, or `isAsked`. Every capsule takes a command without standard input. */
export function isPassedOn(isAsked: boolean): boolean {
  return isAsked || !(process.stdin.isTTY || isNull());
}

function isNull(): boolean {
  try {
    const [own, none] = [fstatSync(0), statSync(devNull)];
    return own.isCharacterDevice() && own.rdev === none.rdev;
  } catch {
    return true; // it is closed
  }
}

/** Passes it on until its end or that of the command. */
export async function passOn(stream: OutputStream): Promise<void> {
  try {
    for await (const part of process.stdin) {
      if (stream.hasEnded) return;
      await stream.write(part);
    }
  } catch (error) {
    if (!stream.hasEnded) note(`capsule exec: standard input is not passed on: ${messageOf(error)}`);
  }
  stream.endStdin();
}
