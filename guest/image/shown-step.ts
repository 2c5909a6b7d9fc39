/** Long steps of a build: a line each; a terminal shows its seconds meanwhile, in place. */

const everyMs = 1_000;

/** Shows the line of a step; the returned function ends it. */
export function shownStep(stream: Pick<NodeJS.WriteStream, "isTTY" | "write"> = process.stderr) {
  return (line: string): (() => void) => {
    if (stream.isTTY !== true) {
      stream.write(`${line}\n`);
      return () => {};
    }
    stream.write(line);
    let seconds = 0;
    const redraw = setInterval(() => stream.write(`\r${line} ${++seconds} s`), everyMs);
    return () => {
      clearInterval(redraw);
      stream.write("\r\x1b[K");
    };
  };
}
