/** A capsule's terminals in this browser tab: several side by side, found again after a reload. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, Skeleton, Unreadable } from "../parts/page.tsx";
import { useReading } from "../parts/reading.ts";
import { useDashboard } from "../state/dashboard.ts";
import { type KeptTerminal, keepTerminals, keptTerminals } from "../state/kept-terminals.ts";
import { Entered } from "./entered.tsx";
import type { LiveTerminal, TerminalView } from "./terminal-view.tsx";

const terminalsMax = 12;
const namedMaxChars = 24;

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
  const { service } = useDashboard();
  // Whoever comes with none of their own may want one that was left rather than yet another shell.
  const isLeft = async () => keptTerminals(id).length === 0 && (await service.terminals(id)).length > 0;
  const { value: startsEmpty, problem: unasked, again: askAgain } = useReading(isLeft, [id, wereOpen.current]);
  // The emulator is most of what the dashboard weighs, and comes when it is needed.
  const { value: loaded, problem, again } = useReading(() => import("./terminal-view.tsx"), []);
  if (!wereOpen.current) return <Entered capsule={capsule} action="pty" render={() => <Skeleton />} />;
  if (problem !== undefined) return <Unreadable problem={problem} onRetry={again} />;
  if (unasked !== undefined) return <Unreadable problem={unasked} onRetry={askAgain} />;
  if (loaded === undefined || startsEmpty === undefined) return <Skeleton />;
  return <Terminals id={id} isRunning={isRunning} startsEmpty={startsEmpty} View={loaded.TerminalView} />;
}

interface TerminalsProps {
  id: string;
  isRunning: boolean;
  /** Without a first terminal where none is kept. */
  startsEmpty: boolean;
  View: typeof TerminalView;
}

function Terminals({ id, isRunning, startsEmpty, View }: TerminalsProps) {
  const [open, setOpen] = useState<OpenTerminal[]>(() => restored(id, startsEmpty));
  const [shown, setShown] = useState(() => open[0]?.number);
  const live = useRef(new Map<number, LiveTerminal>());
  const tags = useRef(new Map(open.flatMap(({ number, kept }) => (kept ? [[number, kept.tag] as const] : []))));
  /** Their programs may take a moment to end. */
  const closed = useRef(new Set<string | undefined>());
  /** One that a person has just asked for gets the focus. */
  const wanted = useRef<number>(undefined);
  const keep = () => keepTerminals(id, keepable(open, tags.current, live.current));
  useEffect(() => {
    keep();
    addEventListener("pagehide", keep);
    return () => removeEventListener("pagehide", keep);
  });
  useEffect(() => () => keepTerminals(id, keepable(open, tags.current, live.current)), [open]);
  /** A new one, or the session of this tag. */
  const add = (tag?: string) => {
    const number = 1 + Math.max(0, ...open.map((each) => each.number));
    wanted.current = number;
    if (tag !== undefined) tags.current.set(number, tag);
    setOpen([...open, { number, kept: tag === undefined ? undefined : { tag, number, screen: "" } }]);
    setShown(number);
  };
  const close = (number: number) => {
    closed.current.add(tags.current.get(number));
    live.current.get(number)?.line.kill();
    tags.current.delete(number);
    const rest = open.filter((each) => each.number !== number);
    setOpen(rest);
    if (shown === number) setShown(rest.at(-1)?.number);
  };
  const refused = whyNoMore(open.length, isRunning);
  if (open.length === 0) {
    return (
      <Empty icon="terminal" title="No terminal open">
        {isRunning && <Left id={id} closed={closed.current} onJoin={add} />}
        <Button kind="primary" icon="plus" refused={refused} onPress={() => add()}>
          New terminal
        </Button>
      </Empty>
    );
  }
  return (
    <div class="terminals">
      <div class="terminal-bar">
        <TerminalTabs open={open} shown={shown} onShow={setShown} onClose={close} />
        <Button kind="quiet" icon="plus" label="New terminal" refused={refused} onPress={() => add()} />
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

function whyNoMore(count: number, isRunning: boolean): string | undefined {
  if (!isRunning) return "The capsule is not running";
  return count < terminalsMax ? undefined : `No more than ${terminalsMax} at once`;
}

interface LeftProps {
  id: string;
  /** Tags of those that were closed here. */
  closed: ReadonlySet<string | undefined>;
  onJoin: (tag: string) => void;
}

/** Sessions that were left, or are open elsewhere. */
function Left({ id, closed, onJoin }: LeftProps) {
  const { service } = useDashboard();
  const { value: running = [] } = useReading(() => service.terminals(id), [id]);
  const sessions = running.filter(({ tag }) => !closed.has(tag));
  if (sessions.length === 0) return null;
  return (
    <>
      <p>These run in the capsule: left, or open elsewhere. Joining one shows what it says from now on.</p>
      <ul class="left-terminals">
        {sessions.slice(0, terminalsMax).map(({ tag, cmd }) => (
          <li key={tag}>
            <Button icon="terminal" onPress={() => onJoin(tag)}>
              Join {cmd.slice(0, namedMaxChars)} <span class="mono">{tag}</span>
            </Button>
          </li>
        ))}
      </ul>
    </>
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
function restored(id: string, startsEmpty: boolean): OpenTerminal[] {
  const kept = keptTerminals(id);
  if (kept.length > 0) return kept.map((each) => ({ number: each.number, kept: each }));
  return startsEmpty ? [] : [{ number: 1, kept: undefined }];
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
