/**
 * The terminals of each capsule that this browser tab has open: kept over a reload, with what stood on their screens,
 * because the server replays only what was printed while nobody listened.
 */
export interface KeptTerminal {
  /** What the server calls the session. */
  tag: string;
  /** Its number among this capsule's terminals, for people. */
  number: number;
  /** The screen, as escape sequences. */
  screen: string;
}

const prefix = "terminals:";
/** The screens of one capsule together; browsers give a page some 5 million characters. */
const screensMaxChars = 1_000_000;

export function keptTerminals(id: string, storage: Storage = sessionStorage): KeptTerminal[] {
  try {
    const kept: unknown = JSON.parse(storage.getItem(prefix + id) ?? "[]");
    return Array.isArray(kept) ? kept.filter(isKept) : [];
  } catch {
    return [];
  }
}

/** Screens that find no room are left out, the sessions never. */
export function keepTerminals(id: string, terminals: readonly KeptTerminal[], storage: Storage = sessionStorage): void {
  if (terminals.length === 0) {
    storage.removeItem(prefix + id);
    return;
  }
  let room = screensMaxChars;
  const trimmed = terminals.map(({ tag, number, screen }) => {
    const fits = screen.length <= room;
    if (fits) room -= screen.length;
    return { tag, number, screen: fits ? screen : "" };
  });
  const bare = trimmed.map((each) => ({ ...each, screen: "" }));
  if (!put(storage, prefix + id, trimmed) && !put(storage, prefix + id, bare)) storage.removeItem(prefix + id);
}

/** False when the browser gives no more room. */
function put(storage: Storage, key: string, value: unknown): boolean {
  try {
    storage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** On signing out: nobody who comes after reads what stood on the screens. */
export function forgetTerminals(storage: Storage = sessionStorage): void {
  for (const key of Object.keys(storage)) if (key.startsWith(prefix)) storage.removeItem(key);
}

function isKept(value: unknown): value is KeptTerminal {
  const { tag, number, screen } = (value ?? {}) as Partial<KeptTerminal>;
  return typeof tag === "string" && typeof number === "number" && typeof screen === "string";
}
