/** The output of a background process: what is kept of it, then what it writes, to its end. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ProcessInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Dialog, FormProblem } from "../parts/dialog.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { size } from "../state/format.ts";
import { OutputLog, type Piece } from "../state/output-log.ts";
import { messageOf } from "../state/toasts.ts";

const shownMaxChars = 256 * 1024;

interface OutputProps {
  id: string;
  process: ProcessInfo;
  onClose: () => void;
}

interface Output {
  pieces: readonly Piece[];
  isCut: boolean;
  /** Written before, and no longer kept by the service. */
  droppedBytes: number;
  exitCode: number | undefined;
  problem: string | undefined;
}

export function OutputDialog({ id, process: { pid, tag, cmd }, onClose }: OutputProps) {
  const { pieces, isCut, droppedBytes, exitCode, problem } = useOutput(id, tag);
  const place = useRef<HTMLElement>(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (isAtEnd.current) place.current?.scrollTo({ top: place.current.scrollHeight });
  }, [pieces]);
  const follow = ({ currentTarget: at }: { currentTarget: HTMLElement }) => {
    isAtEnd.current = at.scrollTop + at.clientHeight >= at.scrollHeight - 4;
  };
  const hasEnded = exitCode !== undefined || problem !== undefined;
  return (
    <Dialog title={`Output of process ${pid}`} isWide onClose={onClose}>
      <div class="dialog-body">
        <p>
          <span class="mono">{cmd}</span>, <span class="mono breakable">{tag}</span>
        </p>
        {droppedBytes > 0 && <p class="muted">{size(droppedBytes)} before this are no longer kept.</p>}
        {isCut && <p class="muted">The last {size(shownMaxChars)} are shown.</p>}
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a long text must be scrollable by the keyboard */}
        <section class="file-text output" tabIndex={0} aria-label="Output" ref={place} onScroll={follow}>
          <pre>
            {pieces.map(({ channel, text }, index) => (
              <span key={index} class={channel}>
                {text}
              </span>
            ))}
          </pre>
        </section>
        <p role="status" class="muted">
          {exitCode !== undefined
            ? `It ended with exit code ${exitCode}.`
            : hasEnded
              ? ""
              : pieces.length === 0
                ? "It has written nothing yet."
                : "It is running; new output appears here."}
        </p>
      </div>
      <FormProblem text={problem} />
      <footer>
        <Button kind="primary" onPress={onClose}>
          Close
        </Button>
      </footer>
    </Dialog>
  );
}

/** Renders at most once for each picture of the screen, however fast the output comes. */
function useOutput(id: string, tag: string): Output {
  const { client } = useDashboard();
  const [output, setOutput] = useState<Output>({
    ...{ pieces: [], isCut: false, droppedBytes: 0 },
    ...{ exitCode: undefined, problem: undefined },
  });
  useEffect(() => {
    const closing = new AbortController();
    const log = new OutputLog(shownMaxChars);
    let end: Partial<Output> = {};
    let frame = 0;
    const render = () => {
      frame = 0;
      if (closing.signal.aborted) return;
      const pieces = log.pieces.map((piece) => ({ ...piece }));
      setOutput((before) => ({ ...before, pieces, isCut: log.isCut, ...end }));
    };
    const change = () => {
      if (frame === 0) frame = requestAnimationFrame(render);
    };
    const read = async () => {
      const stream = await client.capsule(id).process(tag).attach({ from: "start", signal: closing.signal });
      for await (const piece of stream) {
        log.add({ channel: piece.channel, text: piece.text });
        end = { droppedBytes: stream.droppedBytes };
        change();
      }
      end = { ...end, exitCode: stream.exitCode };
    };
    void read()
      .catch((error) => {
        end = { ...end, problem: messageOf(error) };
      })
      .then(change);
    return () => {
      closing.abort();
      cancelAnimationFrame(frame);
    };
  }, [id, tag]);
  return output;
}
