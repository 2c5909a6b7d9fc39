/**
 * The open terminals of this browser tab, per capsule, saved over a reload. Their screens are saved too: the server
 * replays only the output since the connection was lost.
 */
export interface SavedTerminal {
  /** Tag of the session. */
  tag: string;
  /** Its number on the page. */
  number: number;
  /** The screen, as escape sequences. */
  screen: string;
  /** It was started elsewhere, and joined here. */
  isJoined?: boolean;
}

const prefix = "terminals:";
/** For the screens of one capsule together; browsers limit a page to about 5 million characters. */
const screensMaxChars = 1_000_000;

export function savedTerminals(id: string, storage: Storage = sessionStorage): SavedTerminal[] {
  try {
    const saved: unknown = JSON.parse(storage.getItem(prefix + id) ?? "[]");
    return Array.isArray(saved) ? saved.filter(isSaved) : [];
  } catch {
    return [];
  }
}

/** Screens that exceed the limit are left out; the sessions are always saved. */
export function saveTerminals(
  id: string,
  terminals: readonly SavedTerminal[],
  storage: Storage = sessionStorage,
): void {
  if (terminals.length === 0 || closed.has(storage)) {
    storage.removeItem(prefix + id);
    return;
  }
  let room = screensMaxChars;
  const trimmed = terminals.map(({ tag, number, screen, isJoined }) => {
    const fits = screen.length <= room;
    if (fits) room -= screen.length;
    return { tag, number, screen: fits ? screen : "", ...(isJoined && { isJoined }) };
  });
  const bare = trimmed.map((each) => ({ ...each, screen: "" }));
  if (!put(storage, prefix + id, trimmed) && !put(storage, prefix + id, bare)) storage.removeItem(prefix + id);
}

/** False: the storage is full. */
function put(storage: Storage, key: string, value: unknown): boolean {
  try {
    storage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Storages of sessions that are signed out: a page that closes afterwards saves nothing. */
const closed = new WeakSet<Storage>();

/** Called on sign-in. */
export function admitTerminals(storage: Storage = sessionStorage): void {
  closed.delete(storage);
}

/** Deletes all of them, screens included, and saves none until `admitTerminals`; called on sign-out. */
export function deleteTerminals(storage: Storage = sessionStorage): void {
  closed.add(storage);
  for (const key of Object.keys(storage)) if (key.startsWith(prefix)) storage.removeItem(key);
}

function isSaved(value: unknown): value is SavedTerminal {
  const { tag, number, screen } = (value ?? {}) as Partial<SavedTerminal>;
  return typeof tag === "string" && typeof number === "number" && typeof screen === "string";
}
