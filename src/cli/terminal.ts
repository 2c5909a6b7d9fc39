/** Connects this program's input and output to a terminal in a capsule. */
import { hasCode, type Pty } from "../sdk/sdk.ts";
import { print } from "./screen.ts";

/** Ctrl-D: a terminal's end of input. */
const endOfInput = 0x04;
const newline = 0x0a;

export interface TerminalInput {
  /** The bytes to pass on for those that were typed. */
  typed(bytes: Uint8Array): Uint8Array;
}

/** The size of this terminal, if the output is one that has a size: that of a program may be 0 by 0. */
export function sizeHere(
  stream: Pick<NodeJS.WriteStream, "isTTY" | "columns" | "rows"> = process.stdout,
): { cols: number; rows: number } | undefined {
  const { isTTY, columns, rows } = stream;
  return isTTY && columns > 0 && rows > 0 ? { cols: columns, rows } : undefined;
}

/** Until the session ends, or `pty` is detached from. Without `input` nothing is passed on. */
export async function relayTerminal(pty: Pty, input: TerminalInput | undefined): Promise<void> {
  const { stdout } = process;
  const resize = () => {
    const size = sizeHere();
    if (size !== undefined) pty.resize(size.cols, size.rows);
  };
  if (stdout.isTTY) {
    stdout.on("resize", resize);
    resize();
  }
  const stopTyping = input === undefined ? () => {} : type(pty, input);
  try {
    for await (const bytes of pty) await print(bytes);
  } finally {
    stopTyping();
    stdout.off("resize", resize);
  }
}

/** Passes input on, as fast as it is taken; returns the function that ends it. */
function type(pty: Pty, input: TerminalInput): () => void {
  const { stdin, stdout } = process;
  let last = newline;
  const pass = async (bytes: Uint8Array) => {
    stdin.pause();
    last = bytes.at(-1) ?? last;
    try {
      await pty.write(input.typed(bytes));
    } catch (error) {
      if (!hasCode(error, "unreachable")) throw error;
      stdout.write("\x07"); // the key is lost: there is no connection
    }
    stdin.resume();
  };
  // In the middle of a line the first one only ends the line.
  const end = () => pty.write(Uint8Array.from(last === newline ? [endOfInput] : [endOfInput, endOfInput]));
  if (stdin.isTTY) stdin.setRawMode(true);
  stdin.on("data", pass);
  stdin.on("end", end);
  return () => {
    stdin.off("data", pass);
    stdin.off("end", end);
    if (stdin.isTTY) stdin.setRawMode(false);
    stdin.pause();
  };
}
