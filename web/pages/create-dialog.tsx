/** The dialog for a new capsule: template, name, size, network, and what happens to it by itself. */
import { useState } from "preact/hooks";
import type { Egress } from "../../src/sdk/sdk.ts";
import { createDefaults } from "../../src/wire/defaults.ts";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { useQuery } from "../parts/query.ts";
import { TextField } from "../parts/text-field.tsx";
import { useDashboard } from "../state/dashboard.ts";
import { cpus, duration, memory } from "../state/format.ts";
import { pairsIn } from "../state/pairs.ts";
import { portsIn } from "../state/ports.ts";
import { goTo } from "../state/route.ts";
import { type Limits, limitsOf } from "../state/service.ts";
import { LabelsField, NameField } from "./capsule-fields.tsx";
import { EgressField, networkPaths, PublicPortsField } from "./network-fields.tsx";

const { template, vcpus, memory_mb: memoryMb } = createDefaults;
const defaults: Settings = {
  name: "",
  template,
  vcpus,
  memoryMb,
  diskMb: "",
  labels: "",
  envs: "",
  times: {},
  autoResume: false,
  egress: "",
  publicPorts: "",
};

interface Settings {
  /** Empty: none. */
  name: string;
  template: string;
  vcpus: number;
  memoryMb: number;
  /** As typed; empty: the template's. */
  diskMb: string;
  /** Lines KEY=VALUE. */
  labels: string;
  envs: string;
  /** A time that is left out is the service's default. */
  times: { [field in (typeof policies)[number]["field"]]?: number };
  autoResume: boolean;
  /** Empty: the service's default. */
  egress: Egress | "";
  /** As typed. */
  publicPorts: string;
}

const policies = [
  {
    field: "timeoutSec",
    limit: "timeout_default_sec",
    label: "Pause when idle",
    hint: "After this time without a command. Files, memory and processes are kept on disk.",
    choices: [0, 300, 900, 3_600, 14_400, 86_400],
  },
  {
    field: "lifetimeSec",
    limit: "lifetime_default_sec",
    label: "Destroy when it has run",
    hint: "For this time, whatever it does. Counts anew after a resume.",
    choices: [0, 900, 3_600, 14_400, 86_400, 604_800],
  },
  {
    field: "retentionSec",
    limit: "retention_default_sec",
    label: "Destroy when paused",
    hint: "For this time, stopped or failed too.",
    choices: [0, 3_600, 86_400, 604_800, 2_592_000],
  },
] as const;

interface FieldsProps {
  settings: Settings;
  onChange: (part: Partial<Settings>) => void;
}

export function CreateDialog({ template, onClose }: { template?: string; onClose: () => void }) {
  const { client, store, templates } = useDashboard();
  const limits = useQuery(() => limitsOf(client), []).value;
  const [settings, setSettings] = useState<Settings>({ ...defaults, template: template ?? defaults.template });
  const change = (part: Partial<Settings>) => setSettings((before) => ({ ...before, ...part }));
  const snapshot = templates.value?.find(({ name, type }) => type === "snapshot" && name === settings.template);
  const create = async () => {
    const { name, diskMb, labels, envs, times, egress, publicPorts, ...rest } = settings;
    const pairs = { labels: pairsIn(labels, "Labels"), envs: pairsIn(envs, "Variables") };
    const given = { ...pairs, ...(name === "" ? {} : { name }), ...(diskMb === "" ? {} : { diskMb: Number(diskMb) }) };
    const ports = portsIn(publicPorts);
    const network = { ...(egress === "" ? {} : { egress }), ...(ports.length === 0 ? {} : { publicPorts: ports }) };
    const { info } = await client.create({ ...rest, ...times, ...given, network, wait: false });
    store.changed(info);
    goTo({ page: "capsule", id: info.id, tab: "terminal" });
  };
  return (
    <FormDialog title="New capsule" confirm="Create" paths={networkPaths} onConfirm={create} onClose={onClose}>
      <TemplateField settings={settings} onChange={change} />
      <NameField text={settings.name} onChange={(name) => change({ name })} />
      {snapshot === undefined ? (
        <SizeFields settings={settings} limits={limits} onChange={change} />
      ) : (
        <p class="notice">
          The size is that of the snapshot: {cpus(snapshot.vcpus ?? defaults.vcpus)},{" "}
          {memory(snapshot.memoryMb ?? defaults.memoryMb)}.
        </p>
      )}
      <DiskField settings={settings} limits={limits} onChange={change} />
      <LabelsField text={settings.labels} onChange={(labels) => change({ labels })} />
      <TextField
        label="Variables"
        rows={2}
        hint="Optional: KEY=VALUE, a line for each, of every command and terminal. They are not shown again."
        text={settings.envs}
        onChange={(envs) => change({ envs })}
      />
      {policies.map((policy) => (
        <PolicyField key={policy.field} policy={policy} settings={settings} limits={limits} onChange={change} />
      ))}
      <label class="choice">
        <input
          type="checkbox"
          checked={settings.autoResume}
          onChange={(event) => change({ autoResume: event.currentTarget.checked })}
        />
        Resume it when a request needs it
      </label>
      <EgressField chosen={settings.egress} hasDefault onChange={(egress) => change({ egress })} />
      <PublicPortsField text={settings.publicPorts} onChange={(publicPorts) => change({ publicPorts })} />
    </FormDialog>
  );
}

function TemplateField({ settings, onChange }: FieldsProps) {
  const choices = useDashboard().templates.value ?? [];
  return (
    <Field label="Template" hint="A built-in image, or a snapshot of a capsule.">
      {(ties) => (
        <select
          {...ties}
          value={settings.template}
          onChange={(event) => onChange({ template: event.currentTarget.value })}
        >
          {!choices.some(({ name }) => name === settings.template) && <option>{settings.template}</option>}
          {choices.map(({ name, type }) => (
            <option key={`${type}/${name}`} value={name}>
              {name}
              {type === "snapshot" ? " (snapshot)" : ""}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

function SizeFields({ settings, limits, onChange }: FieldsProps & { limits: Limits | undefined }) {
  const memoryMax = limits?.memory_max_mb.toLocaleString("en");
  return (
    <div class="fields">
      <Field label="Virtual CPUs" hint={limits && `1 to ${limits.vcpus_max}`}>
        {(ties) => (
          <input
            {...ties}
            type="number"
            required
            min={1}
            max={limits?.vcpus_max}
            value={settings.vcpus}
            onInput={(event) => onChange({ vcpus: event.currentTarget.valueAsNumber })}
          />
        )}
      </Field>
      <Field label="Memory, MiB" hint={limits && `${limits.memory_min_mb} to ${memoryMax}`}>
        {(ties) => (
          <input
            {...ties}
            type="number"
            required
            min={limits?.memory_min_mb}
            max={limits?.memory_max_mb}
            value={settings.memoryMb}
            onInput={(event) => onChange({ memoryMb: event.currentTarget.valueAsNumber })}
          />
        )}
      </Field>
    </div>
  );
}

function DiskField({ settings, limits, onChange }: FieldsProps & { limits: Limits | undefined }) {
  const most = limits && ` At most ${limits.disk_max_mb.toLocaleString("en")}.`;
  return (
    <Field label="Disk, MiB" hint={`Empty: the template's, which is the least.${most ?? ""}`}>
      {(ties) => (
        <input
          {...ties}
          type="number"
          min={1}
          max={limits?.disk_max_mb}
          value={settings.diskMb}
          onInput={(event) => onChange({ diskMb: event.currentTarget.value })}
        />
      )}
    </Field>
  );
}

interface PolicyFieldProps extends FieldsProps {
  policy: (typeof policies)[number];
  limits: Limits | undefined;
}

function PolicyField({ policy, settings, limits, onChange }: PolicyFieldProps) {
  const { field, limit, label, hint, choices } = policy;
  const choose = (text: string) => {
    const { [field]: _, ...others } = settings.times;
    onChange({ times: text === "" ? others : { ...others, [field]: Number(text) } });
  };
  const preset = limits?.[limit];
  return (
    <Field label={label} hint={hint}>
      {(ties) => (
        <select {...ties} value={settings.times[field] ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">
            The service's default{preset === undefined ? "" : `: ${after(preset).toLowerCase()}`}
          </option>
          {choices.map((seconds) => (
            <option key={seconds} value={seconds}>
              {after(seconds)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

function after(seconds: number): string {
  return seconds === 0 ? "Never" : `After ${duration(seconds)}`;
}
