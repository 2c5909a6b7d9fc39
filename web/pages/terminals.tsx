/** A capsule's terminals in this browser tab: several side by side, found again after a reload. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { type KeptTerminal, keepTerminals, keptTerminals } from "../state/kept-terminals.ts";
import { Entered } from "./entered.tsx";
import type { LiveTerminal, TerminalView } from "./terminal-view.tsx";

const terminalsMax = 12;

interface OpenTerminal {
  number: number;
  kept: KeptTerminal | undefined;
}

export function TerminalsTab({ capsule }: { capsule: CapsuleInfo }) {
  const { id, status } = capsule;
  const isRunning = status === "running";
  // Terminals that were open stay, so that what stands on them can still be read while the capsule is paused.
  const wereOpen = useRef(false);
  wereOpen.current = isRunning || (wereOpen.current && status === "paused");
  // The emulator is most of what the dashboard weighs, and comes when it is needed.
  const { value: loaded, problem, again } = useReading(() => import("./terminal-view.tsx"), []);
  if (!wereOpen.current) return <Entered capsule={capsule} action="pty" render={() => <Skeleton />} />;
  if (problem !== undefined) return <Unreadable problem={problem} onRetry={again} />;
  if (loaded === undefined) return <Skeleton />;
  return <Terminals id={id} isRunning={isRunning} View={loaded.TerminalView} />;
}

interface TerminalsProps {
  id: string;
  isRunning: boolean;
  View: typeof TerminalView;
}

function Terminals({ id, isRunning, View }: TerminalsProps) {
  const [open, setOpen] = useState<OpenTerminal[]>(() => restored(id));
  const [shown, setShown] = useState(() => open[0]?.number);
  const live = useRef(new Map<number, LiveTerminal>());
  const tags = useRef(new Map(open.flatMap(({ number, kept }) => (kept ? [[number, kept.tag] as const] : []))));
  /** One that a person has just asked for gets the focus. */
  const wanted = useRef<number>(undefined);
  const keep = () => keepTerminals(id, keepable(open, tags.current, live.current));
  useEffect(() => {
    keep();
    addEventListener("pagehide", keep);
    return () => removeEventListener("pagehide", keep);
  });
  useEffect(() => () => keepTerminals(id, keepable(open, tags.current, live.current)), [open]);
  const add = () => {
    const number = 1 + Math.max(0, ...open.map((each) => each.number));
    wanted.current = number;
    setOpen([...open, { number, kept: undefined }]);
    setShown(number);
  };
  const close = (number: number) => {
    live.current.get(number)?.line.kill();
    tags.current.delete(number);
    const rest = open.filter((each) => each.number !== number);
    setOpen(rest);
    if (shown === number) setShown(rest.at(-1)?.number);
  };
  if (open.length === 0) {
    return (
      <Empty icon="terminal" title="No terminal open">
        <Button kind="primary" icon="plus" refused={isRunning ? undefined : "The capsule is not running"} onPress={add}>
          New terminal
        </Button>
      </Empty>
    );
  }
  const refused = open.length < terminalsMax ? undefined : `No more than ${terminalsMax} at once`;
  return (
    <div class="terminals">
      <div class="terminal-bar">
        <TerminalTabs open={open} shown={shown} onShow={setShown} onClose={close} />
        <Button
          kind="quiet"
          icon="plus"
          label="New terminal"
          refused={isRunning ? refused : "The capsule is not running"}
          onPress={add}
        />
      </div>
      {open.map(({ number, kept }) => (
        <View
          key={number}
          capsuleId={id}
          number={number}
          kept={kept}
          isShown={number === shown}
          isRunning={isRunning}
          onTag={(tag) => {
            tags.current.set(number, tag);
            keep();
          }}
          onLive={(terminal) => {
            if (terminal === undefined) live.current.delete(number);
            else live.current.set(number, terminal);
            if (wanted.current === number) terminal?.focus();
          }}
          onClose={() => close(number)}
        />
      ))}
    </div>
  );
}

interface TerminalTabsProps {
  open: readonly OpenTerminal[];
  shown: number | undefined;
  onShow: (number: number) => void;
  onClose: (number: number) => void;
}

function TerminalTabs({ open, shown, onShow, onClose }: TerminalTabsProps) {
  return (
    <ul class="terminal-tabs" aria-label="Terminals">
      {open.map(({ number }) => (
        <li key={number} class={number === shown ? "shown" : undefined}>
          <button type="button" aria-pressed={number === shown} onClick={() => onShow(number)}>
            Terminal {number}
          </button>
          <Button kind="quiet" icon="close" label={`Close terminal ${number}`} onPress={() => onClose(number)} />
        </li>
      ))}
    </ul>
  );
}

/** The kept ones; in a capsule without any, a first one. */
function restored(id: string): OpenTerminal[] {
  const kept = keptTerminals(id);
  return kept.length === 0
    ? [{ number: 1, kept: undefined }]
    : kept.map((each) => ({ number: each.number, kept: each }));
}

function keepable(
  open: readonly OpenTerminal[],
  tags: ReadonlyMap<number, string>,
  live: ReadonlyMap<number, LiveTerminal>,
): KeptTerminal[] {
  return open.flatMap(({ number }) => {
    const tag = tags.get(number);
    const terminal = live.get(number);
    if (tag === undefined || terminal === undefined) return [];
    return terminal.line.state.value.phase === "ended" ? [] : [{ tag, number, screen: terminal.screen() }];
  });
}
