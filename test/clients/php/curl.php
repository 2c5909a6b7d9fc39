<?php
// What PHP's curl extension does with the service, one JSON line a step; suite.test.ts starts it and judges.

const BIG_UPLOAD = 4 << 20;
[$work, $big, $refused] = array_map('getenv', ['CLIENT_FOLDER', 'CLIENT_FILE', 'CLIENT_REFUSED']);

function say(string $step, array $values): void
{
    echo json_encode(['step' => $step, ...$values], JSON_UNESCAPED_UNICODE), "\n";
}

/** Status and body; 0 when there was no answer. */
function request(string $method, string $path, array $options = [], array $headers = [], ?string $asKey = null): array
{
    $curl = curl_init(getenv('CAPSULE_URL') . $path);
    curl_setopt_array($curl, [
        CURLOPT_CUSTOMREQUEST => $method,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_HTTPHEADER => ['X-API-Key: ' . ($asKey ?? getenv('CAPSULE_API_KEY')), ...$headers],
    ]);
    curl_setopt_array($curl, $options);
    $body = curl_exec($curl);
    return [curl_getinfo($curl, CURLINFO_RESPONSE_CODE), $body];
}

function call(string $method, string $path, ?array $json = null, ?string $asKey = null): array
{
    $options = $json === null ? [] : [CURLOPT_POSTFIELDS => json_encode($json, JSON_UNESCAPED_SLASHES)];
    [$status, $body] = request($method, $path, $options, $json === null ? [] : ['Content-Type: application/json'], $asKey);
    return [$status, $body === '' || $body === false ? null : json_decode($body, true)];
}

function code(string $method, string $path, ?array $json = null, ?string $asKey = null): array
{
    [$status, $answer] = call($method, $path, $json, $asKey);
    return [$status, $answer['error']['code'] ?? null];
}

function upload(string $path, string $target, string $file, bool $fileFirst = false): int
{
    $fields = ['path' => $target, 'file' => new CURLFile($file)];
    return request('POST', $path, [CURLOPT_POSTFIELDS => $fileFirst ? array_reverse($fields) : $fields])[0];
}

function download(string $path, string $target, string $file): int
{
    $copy = fopen($file, 'wb');
    $options = [CURLOPT_POSTFIELDS => json_encode(['path' => $target]), CURLOPT_FILE => $copy];
    [$status] = request('POST', $path, $options, ['Content-Type: application/json']);
    fclose($copy);
    return $status;
}

[$status, $capsule] = call('POST', '/v1/capsules', ['memory_mb' => 256]);
say('create', ['status' => $status]);
$at = "/v1/capsules/{$capsule['id']}";
[$status, $capsule] = call('GET', "$at?wait=running&timeout=120");
say('wait', ['status' => $status, 'state' => $capsule['status']]);

$exec = fn(string $cmd, array $args, array $more = []) => call('POST', "$at/exec", ['cmd' => $cmd, 'args' => $args, ...$more]);
[, $result] = $exec('sh', ['-c', 'echo out; echo err >&2; exit 3']);
say('exec', ['exit_code' => $result['exit_code'], 'stdout' => $result['stdout'], 'stderr' => $result['stderr']]);
[, $result] = $exec('printf', ['\377\000\376']);
say('binary', ['encoding' => $result['encoding'], 'bytes' => bin2hex(base64_decode($result['stdout']))]);
[$status, $result] = $exec('sleep', ['300'], ['timeout' => 1]);
say('time-out', ['status' => $status, 'code' => $result['error']['code']]);

[$status, $process] = $exec('sleep', ['301'], ['background' => true]);
say('background', ['status' => $status]);
[, $listed] = call('GET', "$at/processes");
say('processes', ['listed' => in_array($process['tag'], array_column($listed['processes'], 'tag'))]);
say('kill', ['status' => call('DELETE', "$at/processes/{$process['tag']}?signal=SIGTERM")[0]]);

$small = "$work/small \"ü\".txt";
file_put_contents($small, "\r\n--b\0\xff");
say('upload', ['status' => upload("$at/files/write", '/root/ü ñ.txt', $small)]);
[$status, $body] = request('POST', "$at/files/read", [CURLOPT_POSTFIELDS => '{"path":"/root/ü ñ.txt"}'], ['Content-Type: application/json']);
say('read', ['status' => $status, 'bytes' => bin2hex($body)]);
[, $listing] = call('POST', "$at/files/list", ['path' => '/root']);
say('list', ['listed' => in_array('ü ñ.txt', array_column($listing['entries'], 'name'))]);

$status = upload("$at/files/write", '/root/second', $small, true);
[, $body] = request('POST', "$at/files/read", [CURLOPT_POSTFIELDS => '{"path":"/root/second"}'], ['Content-Type: application/json']);
say('file first', ['status' => $status, 'bytes' => bin2hex($body)]);

$hash = hash_file('sha256', $big);
$status = upload("$at/files/stream/write", '/root/big', $big);
[, $result] = $exec('sha256sum', ['/root/big'], ['timeout' => 0]);
say('big up', ['status' => $status, 'whole' => str_starts_with($result['stdout'], $hash)]);
$status = download("$at/files/stream/read", '/root/big', "$work/copy");
say('big down', ['status' => $status, 'whole' => hash_file('sha256', "$work/copy") === $hash]);

request('POST', "$at/exec", [CURLOPT_TIMEOUT => 5, CURLOPT_POSTFIELDS => '{"cmd":"sleep","args":["302"],"timeout":0}'], ['Content-Type: application/json']);
$form = "--b\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n/root/big\r\n"
    . "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" . str_repeat('x', BIG_UPLOAD);
$half = function ($curl, $stream, int $length) use (&$form): string {
    if ($form === '') throw new RuntimeException('the client gives up');
    $chunk = substr($form, 0, $length);
    $form = substr($form, strlen($chunk));
    return $chunk;
};
try {
    request('POST', "$at/files/stream/write", [CURLOPT_UPLOAD => true, CURLOPT_READFUNCTION => $half], ['Content-Type: multipart/form-data; boundary=b']);
} catch (RuntimeException) {
    // as it was asked to
}
$once = fn($curl, string $chunk): int => 0; // of it taken, which ends the transfer
$options = [CURLOPT_POSTFIELDS => '{"path":"/root/big"}', CURLOPT_WRITEFUNCTION => $once];
request('POST', "$at/files/stream/read", $options, ['Content-Type: application/json']);
say('aborted', ['of' => 'requests', 'id' => $capsule['id']]);
fgets(STDIN);

say('401', ['answer' => code('GET', $at, null, 'capk_wrong')]);
say('404', ['answer' => code('GET', '/v1/capsules/cl-none')]);
say('405', ['answer' => code('PUT', $at)]);
say('400', ['answer' => code('POST', "$at/exec", ['cmd' => 7])]);
say('409', ['answer' => code('POST', "$at/resume")]);
$huge = ['cmd' => str_repeat('x', 20 << 20)];
say('413', ['answer' => code('POST', "$at/exec", $huge)]);
[$status, $body] = request('POST', "$at/exec", [CURLOPT_POSTFIELDS => '{"cmd":"true"}'], ['Content-Type: text/plain']);
say('415', ['answer' => [$status, json_decode($body, true)['error']['code']]]);
say('429', ['answer' => code('POST', '/v1/capsules', ['vcpus' => 200])]);
$lost = 0;
for ($count = 0; $count < (int) getenv('CLIENT_TRIES'); $count++) {
    $lost += code('POST', "$at/exec", $huge) !== [413, 'too_large'];
    $lost += code('POST', "$at/exec", $huge, 'capk_wrong') !== [401, 'unauthorized'];
    $lost += code('POST', '/v1/nothing', $huge) !== [404, 'not_found'];
    $lost += upload('/v1/capsules/cl-none/files/write', '/root/f', $refused) !== 404;
    $lost += upload('/v1/capsules/cl-none/files/stream/write', '/root/f', $refused) !== 404;
}
say('refused', ['lost' => $lost]);

[$status, $capsule] = call('POST', "$at/pause");
say('pause', ['status' => $status, 'state' => $capsule['status']]);
say('paused', ['answer' => code('POST', "$at/exec", ['cmd' => 'true'])]);
say('refused upload', ['status' => upload("$at/files/write", '/root/f', $refused)]);
[$status, $capsule] = call('POST', "$at/resume");
say('resume', ['status' => $status, 'state' => $capsule['status']]);
$template = 'client-' . getenv('CLIENT_NAME');
say('snapshot', ['status' => call('POST', '/v1/snapshots', ['sandbox_id' => $capsule['id'], 'name' => $template])[0]]);
say('delete snapshot', ['status' => call('DELETE', "/v1/snapshots/$template")[0]]);
say('gone', ['answer' => code('GET', $at)]);
