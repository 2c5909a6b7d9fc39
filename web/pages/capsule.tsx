/** The page of one capsule: facts, actions, and tabs for its terminals, files, processes, network, metrics and details. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { CapsuleInfo } from "../../src/sdk/sdk.ts";
import { Button } from "../parts/button.tsx";
import { CopyButton } from "../parts/copy-text.tsx";
import { Empty, Page, Skeleton } from "../parts/page.tsx";
import { StatusBadge, statusStyles } from "../parts/status-badge.tsx";
import { TabPanel, Tabs } from "../parts/tabs.tsx";
import { Time, Until } from "../parts/time.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { cpus, duration, memory } from "../state/format.ts";
import { type CapsuleTab, goTo, hrefOf } from "../state/route.ts";
import { CapsuleActions } from "./capsule-actions.tsx";
import { PlotsTab } from "./capsule-plots.tsx";
import { EditDialog } from "./edit-dialog.tsx";
import { FilesTab } from "./files.tsx";
import { useLeftShells } from "./left-shells.ts";
import { NetworkTab } from "./network.tsx";
import { ProcessesTab } from "./processes.tsx";
import { RequireRunning } from "./require-running.tsx";
import { TerminalsTab } from "./terminals.tsx";

const tabs = [
  { value: "terminal", name: "Terminal" },
  { value: "files", name: "Files" },
  { value: "processes", name: "Processes" },
  { value: "network", name: "Network" },
  { value: "metrics", name: "Metrics" },
  { value: "details", name: "Details" },
] as const;

export function CapsulePage({ id, tab }: { id: string; tab: CapsuleTab }) {
  const { store } = useDashboard();
  useLeftShells(id);
  const capsule = store.find(id);
  if (capsule === undefined) {
    return (
      <Page title={id}>
        <Skeleton />
      </Page>
    );
  }
  if (capsule === null) return <NotFound id={id} />;
  const { name, status, template, vcpus, memoryMb, errorReason } = capsule;
  return (
    <Page
      title={name ?? id}
      back={<a href={hrefOf({ page: "capsules" })}>‹ All capsules</a>}
      heading={<span class="mono">{name ?? id}</span>}
      beside={<CopyButton text={id} label="Copy the id" />}
      lead={
        <div class="facts">
          <StatusBadge status={status} operation={store.operations.value.get(id)} />
          <span>
            from {template} · {cpus(vcpus)} · {memory(memoryMb)}
          </span>
        </div>
      }
      actions={<CapsuleActions capsule={capsule} />}
    >
      {status === "error" && (
        <p class="failure" role="alert">
          This capsule failed: {errorReason ?? "no reason is known"}.
        </p>
      )}
      <Tabs
        label="Capsule"
        tabs={tabs}
        chosen={tab}
        id="capsule"
        onChoose={(next) => goTo({ page: "capsule", id, tab: next })}
      />
      <TabPanel id="capsule" chosen={tab}>
        <TabContent capsule={capsule} tab={tab} />
      </TabPanel>
    </Page>
  );
}

function TabContent({ capsule, tab }: { capsule: CapsuleInfo; tab: CapsuleTab }) {
  switch (tab) {
    case "terminal":
      return <TerminalsTab capsule={capsule} />;
    case "files":
      return <RequireRunning capsule={capsule} action="files" render={() => <FilesTab id={capsule.id} />} />;
    case "processes":
      return <RequireRunning capsule={capsule} action="processes" render={() => <ProcessesTab id={capsule.id} />} />;
    case "network":
      return <NetworkTab capsule={capsule} />;
    case "metrics":
      return <PlotsTab id={capsule.id} />;
    case "details":
      return <Details capsule={capsule} />;
  }
}

function Details({ capsule }: { capsule: CapsuleInfo }) {
  const [isEditing, setEditing] = useState(false);
  return (
    <>
      <DetailList capsule={capsule} />
      <Button hint="Changes both, in every status" onPress={() => setEditing(true)}>
        Edit name and labels
      </Button>
      {isEditing && <EditDialog capsule={capsule} onClose={() => setEditing(false)} />}
    </>
  );
}

function DetailList({ capsule }: { capsule: CapsuleInfo }) {
  const { id, name, labels, status, template, vcpus, memoryMb, diskMb, errorReason } = capsule;
  return (
    <dl class="panel details">
      <dt>Id</dt>
      <dd class="mono">{id}</dd>
      {name !== null && (
        <>
          <dt>Name</dt>
          <dd class="mono">{name}</dd>
        </>
      )}
      {Object.keys(labels).length > 0 && (
        <>
          <dt>Labels</dt>
          {Object.entries(labels).map(([key, value]) => (
            <dd class="mono" key={key}>
              {key}={value}
            </dd>
          ))}
        </>
      )}
      <dt>Status</dt>
      <dd>
        {status}. {statusStyles[status].meaning}
      </dd>
      {errorReason !== null && (
        <>
          <dt>Reason</dt>
          <dd>{errorReason}</dd>
        </>
      )}
      <dt>Template</dt>
      <dd>{template}</dd>
      <dt>Size</dt>
      <dd>
        {cpus(vcpus)}, {memory(memoryMb)}, disk of {memory(diskMb)}
      </dd>
      <Policies capsule={capsule} />
      <dt>Created</dt>
      <dd>
        <Time at={capsule.createdAt} />
      </dd>
      <dt>Status since</dt>
      <dd>
        <Time at={capsule.lastUpdated} />
      </dd>
      <dt>Last started</dt>
      <dd>
        <Time at={capsule.startedAt} />
      </dd>
      <dt>Last active</dt>
      <dd>
        <Time at={capsule.lastActiveAt} none="not yet" />
      </dd>
      <dt>History</dt>
      <dd>
        <a href={hrefOf({ page: "audit", capsule: id })}>Audit log of this capsule</a>
      </dd>
      <Connect id={id} />
    </dl>
  );
}

/** Lines that use this capsule from elsewhere. The key is never among them. */
function Connect({ id }: { id: string }) {
  const at = `${location.origin}/v1/capsules/${id}`;
  const lines = {
    "In a shell": `capsule exec ${id} -- uname -a`,
    "In TypeScript": `const capsule = await Capsule.connect("${id}");`,
    "By curl": `curl -H "X-API-Key: $CAPSULE_API_KEY" ${at}`,
  };
  return (
    <>
      {Object.entries(lines).map(([where, line]) => (
        <Fragment key={where}>
          <dt>{where}</dt>
          <dd class="mono copied">
            <span>{line}</span>
            <CopyButton text={line} label={`Copy: ${where.toLowerCase()}`} />
          </dd>
        </Fragment>
      ))}
    </>
  );
}

const actionWords = { pause: "paused", destroy: "destroyed" };

function Policies({ capsule }: { capsule: CapsuleInfo }) {
  const { timeoutSec, onTimeout, lifetimeSec, onExpiry, expiresAt, retentionSec, autoResume } = capsule;
  return (
    <>
      <dt>Inactivity</dt>
      <dd>
        {timeoutSec === 0 ? "no limit" : `${actionWords[onTimeout]} after ${duration(timeoutSec)} without a command`}
      </dd>
      <dt>Lifetime</dt>
      <dd>{lifetimeSec === 0 ? "no limit" : `${actionWords[onExpiry]} after running for ${duration(lifetimeSec)}`}</dd>
      {expiresAt !== null && (
        <>
          <dt>Expires</dt>
          <dd>
            <Until at={expiresAt} none="never" />
          </dd>
        </>
      )}
      <dt>Retention</dt>
      <dd>
        {retentionSec === 0 ? "no limit" : `destroyed ${duration(retentionSec)} after it was paused, stopped or failed`}
      </dd>
      <dt>Resumes by itself</dt>
      <dd>{autoResume ? "when a request needs it" : "no"}</dd>
    </>
  );
}

function NotFound({ id }: { id: string }) {
  return (
    <Page title="No such capsule">
      <Empty icon="box" title="This capsule does not exist">
        <p>
          <span class="mono">{id}</span> was destroyed, turned into a template, or never existed.
        </p>
        <p>
          <a class="button plain" href={hrefOf({ page: "capsules" })}>
            All capsules
          </a>
        </p>
      </Empty>
    </Page>
  );
}
