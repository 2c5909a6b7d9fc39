/** The rows of the audit log. */
import { Icon, type IconName } from "../parts/icon.tsx";
import { Table, wideOnly } from "../parts/table.tsx";
import { ExactTime } from "../parts/time.tsx";
import { type Entry, nameOfKey, type Outcome, outcomeOf, type Shown } from "../state/audit-entries.ts";
import { hrefOf } from "../state/route.ts";

export function AuditTable({ shown }: { shown: readonly Shown[] }) {
  return (
    <Table
      caption="Audit log, newest first"
      columns={["When", "What", wideOnly("Capsule"), wideOnly("Who"), "Outcome"]}
    >
      {shown.map((each) => (
        <EntryRow key={each.entry.id} {...each} />
      ))}
    </Table>
  );
}

/** By area: the part of the action before its dot. */
const icons: Record<string, IconName> = {
  capsule: "box",
  template: "layers",
  exec: "terminal",
  pty: "terminal",
  process: "list",
  file: "file",
  port: "link",
  key: "key",
  "sign-in": "exit",
  "sign-in-link": "link",
  ticket: "link",
  disk: "gauge",
};

function EntryRow({ entry, hasTicket }: Shown) {
  const { at, action, subject, capsule_id, address, exit_code } = entry;
  const [area = "", verb] = action.split(".");
  return (
    <tr>
      <td>
        <ExactTime at={at} />
      </td>
      <th scope="row">
        <span class="with-icon">
          <Icon name={icons[area] ?? "list"} />
          <span>
            {area}
            {verb !== undefined && (
              <>
                <wbr />.{verb}
              </>
            )}
            {hasTicket && <span class="muted wide-only"> by a ticket</span>}
          </span>
        </span>
        {subject !== null && (
          <span class="sub mono breakable two-lines" title={subject}>
            {subject}
          </span>
        )}
      </th>
      <td class="wide-only">
        {capsule_id === null ? (
          <span class="muted">none</span>
        ) : (
          <a class="mono" href={hrefOf({ page: "audit", capsule: capsule_id })} title={capsule_id}>
            {capsule_id.slice(0, 11)}…
          </a>
        )}
      </td>
      <td class="wide-only breakable">
        {nameOfKey(entry)}
        <span class="sub mono">{address}</span>
      </td>
      <td>
        <OutcomeBadge entry={entry} />
        {exit_code !== null && exit_code !== 0 && <span class="sub">exit code {exit_code}</span>}
      </td>
    </tr>
  );
}

const tones: Record<Outcome, string> = {
  started: "begun",
  done: "good",
  aborted: "off",
  refused: "bad",
  failed: "bad",
};

function OutcomeBadge({ entry }: { entry: Entry }) {
  const { status } = entry;
  const outcome = outcomeOf(entry);
  return (
    <span class={`badge ${tones[outcome]}`} title={`HTTP status ${status}`}>
      <span class="mark" aria-hidden="true" />
      {tones[outcome] === "bad" ? `${outcome}, ${status}` : outcome}
    </span>
  );
}
