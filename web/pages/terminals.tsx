/** A capsule's terminals in this browser tab; they are restored after a reload. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { Empty, LoadError, Skeleton } from "../parts/page.tsx";
import { useQuery } from "../parts/query.ts";
import { Time } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { type SavedTerminal, savedTerminals, saveTerminals } from "../state/saved-terminals.ts";
import { sessionsIn } from "../state/service.ts";
import { fontSizes, savedFontSize, saveFontSize } from "../state/terminal-font.ts";
import { endShell } from "./left-shells.ts";
import { RequireRunning } from "./require-running.tsx";
import type { LiveTerminal, TerminalView } from "./terminal-view.tsx";

const terminalsMax = 12;
const namedMaxChars = 24;

interface OpenTerminal {
  number: number;
  saved: SavedTerminal | undefined;
}

export function TerminalsTab({ capsule }: { capsule: CapsuleInfo }) {
  const { id, status } = capsule;
  const isRunning = status === "running";
  // Open terminals stay on the page while the capsule is paused, so that their output can still be read.
  const hasOpened = useRef(false);
  hasOpened.current = isRunning || (hasOpened.current && status === "paused");
  const { client } = useDashboard();
  // Without saved terminals, detached sessions are offered before a new shell is started. Listing them would resume a paused capsule.
  const hasDetached = async () =>
    hasOpened.current && savedTerminals(id).length === 0 && (await sessionsIn(client.capsule(id))).length > 0;
  const sessions = useQuery(hasDetached, [id, hasOpened.current]);
  // The terminal emulator is the largest part of the dashboard's code: loaded on first use.
  const emulator = useQuery(() => import("./terminal-view.tsx"), []);
  if (!hasOpened.current) return <RequireRunning capsule={capsule} action="pty" render={() => <Skeleton />} />;
  for (const { problem, reload } of [emulator, sessions])
    if (problem !== undefined) return <LoadError problem={problem} onRetry={reload} />;
  if (emulator.value === undefined || sessions.value === undefined) return <Skeleton />;
  return <Terminals id={id} isRunning={isRunning} startsEmpty={sessions.value} View={emulator.value.TerminalView} />;
}

interface TerminalsProps {
  id: string;
  isRunning: boolean;
  /** Open no first terminal when none is saved. */
  startsEmpty: boolean;
  View: typeof TerminalView;
}

function Terminals({ id, isRunning, startsEmpty, View }: TerminalsProps) {
  const { open, shown, closed, show, add, close, setTag, setLive } = useTerminals(id, startsEmpty);
  /** The terminal that opens by itself. */
  const first = useRef(shown).current;
  const refused = refusalOf(open.length, isRunning);
  const [fontPx, setFontPx] = useState(savedFontSize);
  const [isFull, setFull] = useState(false);
  const chooseFont = (px: number) => {
    saveFontSize(px);
    setFontPx(px);
  };
  if (open.length === 0) {
    return (
      <Empty icon="terminal" title="No terminal open">
        {isRunning && <DetachedSessions id={id} closed={closed} onJoin={add} />}
        <Button kind="primary" icon="plus" refused={refused} onPress={() => add()}>
          New terminal
        </Button>
      </Empty>
    );
  }
  return (
    <div class={isFull ? "terminals full" : "terminals"}>
      <div class="terminal-bar">
        <TerminalTabs open={open} shown={shown} onShow={show} onClose={close} />
        <Button kind="quiet" icon="plus" label="New terminal" refused={refused} onPress={() => add()} />
        <ViewButtons fontPx={fontPx} onFont={chooseFont} isFull={isFull} onFull={setFull} />
      </div>
      {open.map(({ number, saved }) => (
        <View
          key={number}
          capsuleId={id}
          number={number}
          saved={saved}
          isShown={number === shown}
          isRunning={isRunning}
          fontPx={fontPx}
          takesFocus={number === first}
          onTag={(tag) => setTag(number, tag)}
          onLive={(terminal) => setLive(number, terminal)}
          onClose={() => close(number)}
        />
      ))}
    </div>
  );
}

interface ViewButtonsProps {
  fontPx: number;
  onFont: (px: number) => void;
  isFull: boolean;
  onFull: (isFull: boolean) => void;
}

/** Full size is that of the window: Escape stays a key of the terminal. */
function ViewButtons({ fontPx, onFont, isFull, onFull }: ViewButtonsProps) {
  const { min, max } = fontSizes;
  const limit = (isAtLimit: boolean) => (isAtLimit ? `The text is ${fontPx} px, the limit` : undefined);
  return (
    <div class="terminal-view-buttons">
      <Button
        kind="quiet"
        icon="smaller"
        label="Smaller text"
        refused={limit(fontPx <= min)}
        onPress={() => onFont(fontPx - 1)}
      />
      <Button
        kind="quiet"
        icon="larger"
        label="Larger text"
        refused={limit(fontPx >= max)}
        onPress={() => onFont(fontPx + 1)}
      />
      <Button
        kind="quiet"
        icon={isFull ? "shrink" : "expand"}
        label={isFull ? "Leave full size" : "Full size"}
        onPress={() => onFull(!isFull)}
      />
    </div>
  );
}

/** The open terminals of a capsule, saved in the tab's session storage on every change and when the page is left. */
function useTerminals(id: string, startsEmpty: boolean) {
  const [open, setOpen] = useState<OpenTerminal[]>(() => restored(id, startsEmpty));
  const [shown, show] = useState(() => open[0]?.number);
  const live = useRef(new Map<number, LiveTerminal>());
  const tags = useRef(new Map(open.flatMap(({ number, saved }) => (saved ? [[number, saved.tag] as const] : []))));
  /** Tags of closed terminals: their programs may still be ending. */
  const closed = useRef(new Set<string | undefined>());
  /** The terminal that the user has just opened: it gets the focus. */
  const focused = useRef<number>(undefined);
  const save = () => saveTerminals(id, savable(open, tags.current, live.current));
  useEffect(() => {
    save();
    addEventListener("pagehide", save);
    return () => removeEventListener("pagehide", save);
  });
  useEffect(() => save, [open]);
  /** Opens a new session, or joins the one with this tag. */
  const add = (tag?: string) => {
    const number = 1 + Math.max(0, ...open.map((each) => each.number));
    focused.current = number;
    if (tag !== undefined) tags.current.set(number, tag);
    setOpen([...open, { number, saved: tag === undefined ? undefined : { tag, number, screen: "", isJoined: true } }]);
    show(number);
  };
  const close = (number: number) => {
    closed.current.add(tags.current.get(number));
    live.current.get(number)?.line.kill();
    tags.current.delete(number);
    const rest = open.filter((each) => each.number !== number);
    setOpen(rest);
    if (shown === number) show(rest.at(-1)?.number);
  };
  const setTag = (number: number, tag: string) => {
    tags.current.set(number, tag);
    save();
  };
  const setLive = (number: number, terminal: LiveTerminal | undefined) => {
    if (terminal === undefined) live.current.delete(number);
    else live.current.set(number, terminal);
    if (focused.current === number) terminal?.focus();
  };
  return { open, shown, closed: closed.current, show, add, close, setTag, setLive };
}

function refusalOf(count: number, isRunning: boolean): string | undefined {
  if (!isRunning) return "The capsule is not running";
  return count < terminalsMax ? undefined : `At most ${terminalsMax} terminals can be open`;
}

interface DetachedSessionsProps {
  id: string;
  /** Tags of the sessions that were closed on this page. */
  closed: Set<string | undefined>;
  onJoin: (tag: string) => void;
}

/** Sessions that are detached, or open in another client. */
function DetachedSessions({ id, closed, onJoin }: DetachedSessionsProps) {
  const dashboard = useDashboard();
  const { client } = dashboard;
  const { value: running = [], reload } = useQuery(() => sessionsIn(client.capsule(id)), [id]);
  const end = async (tag: string) => {
    if (await dashboard.attempt(() => endShell(client, id, tag))) closed.add(tag);
    reload();
  };
  const sessions = running.filter(({ tag }) => !closed.has(tag));
  if (sessions.length === 0) return null;
  return (
    <>
      <p>
        These sessions run in the capsule, detached or open in another client. A joined one shows its kept output first.
      </p>
      <ul class="detached-sessions">
        {sessions.slice(0, terminalsMax).map(({ tag, cmd, startedAt }) => (
          <li key={tag}>
            <Button icon="terminal" onPress={() => onJoin(tag)}>
              Join {cmd.slice(0, namedMaxChars)}
              {startedAt === undefined ? (
                <span class="mono">{tag}</span>
              ) : (
                <span class="muted">
                  started <Time at={new Date(startedAt).toISOString()} />
                </span>
              )}
            </Button>
            <Button kind="quiet" icon="bin" label={`End session ${tag}`} onPress={() => void end(tag)} />
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

/** The saved terminals; without any, a first one unless `startsEmpty`. */
function restored(id: string, startsEmpty: boolean): OpenTerminal[] {
  const saved = savedTerminals(id);
  if (saved.length > 0) return saved.map((each) => ({ number: each.number, saved: each }));
  return startsEmpty ? [] : [{ number: 1, saved: undefined }];
}

function savable(
  open: readonly OpenTerminal[],
  tags: ReadonlyMap<number, string>,
  live: ReadonlyMap<number, LiveTerminal>,
): SavedTerminal[] {
  return open.flatMap(({ number, saved }) => {
    const isJoined = saved?.isJoined === true;
    const tag = tags.get(number);
    const terminal = live.get(number);
    if (tag === undefined || terminal === undefined) return [];
    return terminal.line.state.value.phase === "ended" ? [] : [{ tag, number, screen: terminal.screen(), isJoined }];
  });
}
