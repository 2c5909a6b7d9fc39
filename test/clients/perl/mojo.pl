#!/usr/bin/perl
# What Perl's Mojo::UserAgent and its WebSocket do with the service, one JSON line a step; suite.test.ts starts it and judges.
use Mojo::Base -strict, -signatures;
use utf8;
use Digest::SHA;
use Mojo::Asset::File;
use Mojo::File 'path';
use Mojo::IOLoop;
use Mojo::JSON qw(decode_json encode_json false true);
use Mojo::UserAgent;
use Mojo::Util qw(b64_decode b64_encode encode);

$| = 1;
my ($base, $key, $work, $big, $refused) = @ENV{qw(CAPSULE_URL CAPSULE_API_KEY CLIENT_FOLDER CLIENT_FILE CLIENT_REFUSED)};

# By default it gives up on any silence of 40 seconds, and on answers of 2 GiB.
my $ua = Mojo::UserAgent->new(inactivity_timeout => 0, max_response_size => 0);

sub say_step ($step, %values) { print encode_json({step => $step, %values}), "\n" }
sub bool ($value) { $value ? true : false }
sub headers ($as = $key) { return {'X-API-Key' => $as} }

sub call ($method, $at, $json = undef, $as = $key) {
  my $tx = $ua->build_tx($method => $base . $at => headers($as) => defined $json ? (json => $json) : ());
  my $answer = $ua->start($tx)->res;
  return (0 + ($answer->code // 0), $answer->json);
}

sub code ($method, $at, @more) {
  my ($status, $answer) = call($method, $at, @more);
  return [$status, $answer->{error}{code}];
}

sub send_text ($at, $text) {
  my $answer = $ua->post($base . $at => {%{headers()}, 'Content-Type' => 'text/plain'} => $text)->res;
  return [0 + $answer->code, $answer->json->{error}{code}];
}

# It sorts the fields by name, so the file comes before the path.
sub upload ($at, $target, $file) {
  my $form = {path => $target, file => {file => "$file", filename => 'small "ü".txt'}};
  my $status = $ua->post($base . $at => headers() => form => $form)->res->code;
  return 0 + ($status // 0);
}

sub download ($at, $target, $file) {
  my $answer = $ua->post($base . $at => headers() => json => {path => $target})->res;
  $answer->save_to($file);
  return 0 + $answer->code;
}

sub sum ($file) { return Digest::SHA->new(256)->addfile("$file", 'b')->hexdigest }

my ($status, $capsule) = call(POST => '/v1/capsules', {memory_mb => 256});
say_step('create', status => $status);
my $id = $capsule->{id};
my $at = "/v1/capsules/$id";
($status, $capsule) = call(GET => "$at?wait=running&timeout=120");
say_step('wait', status => $status, state => $capsule->{status});

sub run ($cmd, $args, %more) { return call(POST => "$at/exec", {cmd => $cmd, args => $args, %more}) }
my (undef, $result) = run('sh', ['-c', 'echo out; echo err >&2; exit 3']);
say_step('exec', map { $_ => $result->{$_} } qw(exit_code stdout stderr));
(undef, $result) = run('printf', ['\377\000\376']);
say_step('binary', encoding => $result->{encoding}, bytes => unpack('H*', b64_decode $result->{stdout}));
($status, $result) = run('sleep', ['300'], timeout => 1);
say_step('time-out', status => $status, code => $result->{error}{code});

($status, my $process) = run('sleep', ['301'], background => true);
say_step('background', status => $status);
my (undef, $listed) = call(GET => "$at/processes");
say_step('processes', listed => bool(scalar grep {; $_->{tag} eq $process->{tag} } @{$listed->{processes}}));
say_step('kill', status => (call(DELETE => "$at/processes/$process->{tag}?signal=SIGTERM"))[0]);

my $small = path($work, 'small');
my $handle = $small->open('>:raw');
print $handle "\r\n--b\x00\xff";
close $handle;
say_step('upload', status => upload("$at/files/write", '/root/ü ñ.txt', $small));
my $copy = path($work, 'copy');
$status = download("$at/files/read", '/root/ü ñ.txt', $copy);
say_step('read', status => $status, bytes => unpack('H*', $copy->slurp));
(undef, my $listing) = call(POST => "$at/files/list", {path => '/root'});
say_step('list', listed => bool(scalar grep {; $_->{name} eq 'ü ñ.txt' } @{$listing->{entries}}));

$status = upload("$at/files/write", '/root/second', $small);
download("$at/files/read", '/root/second', $copy);
say_step('file first', status => $status, bytes => unpack('H*', $copy->slurp));

$status = upload("$at/files/stream/write", '/root/big', $big);
(undef, $result) = run('sha256sum', ['/root/big'], timeout => 0);
say_step('big up', status => $status, whole => bool((split ' ', $result->{stdout})[0] eq sum($big)));
$status = download("$at/files/stream/read", '/root/big', $copy);
say_step('big down', status => $status, whole => bool(sum($copy) eq sum($big)));

my $hasty = Mojo::UserAgent->new(request_timeout => 5);
$hasty->post("$base$at/exec" => headers() => json => {cmd => 'sleep', args => ['302'], timeout => 0});
my $half = $hasty->build_tx(POST => "$base$at/files/stream/write" => headers());
$half->req->headers->content_type('multipart/form-data; boundary=b')->content_length(8 << 20);
$half->req->content->write(
  qq{--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/root/big\r\n}
    . qq{--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n} . 'x' x (4 << 20));
$hasty->start($half);
my $short = Mojo::UserAgent->new(max_response_size => 1 << 20);
$short->post("$base$at/files/stream/read" => headers() => json => {path => '/root/big'});
say_step('aborted', of => 'requests', id => $id);
<STDIN>;

say_step('401', answer => code(GET => $at, undef, 'capk_wrong'));
say_step('404', answer => code(GET => '/v1/capsules/cl-none'));
say_step('405', answer => code(PUT => $at));
say_step('400', answer => code(POST => "$at/exec", {cmd => 7}));
say_step('409', answer => code(POST => "$at/resume"));
my $huge = {cmd => 'x' x (20 << 20)};
say_step('413', answer => code(POST => "$at/exec", $huge));
say_step('415', answer => send_text("$at/exec", '{"cmd":"true"}'));
say_step('429', answer => code(POST => '/v1/capsules', {vcpus => 200}));
my $lost = 0;
for (1 .. $ENV{CLIENT_TRIES}) {
  $lost++ if (call(POST => "$at/exec", $huge))[0] != 413;
  $lost++ if (call(POST => "$at/exec", $huge, 'capk_wrong'))[0] != 401;
  $lost++ if (call(POST => '/v1/nothing', $huge))[0] != 404;
  for my $verb (qw(write stream/write)) {
    $lost++ if upload("/v1/capsules/cl-none/files/$verb", '/root/f', $refused) != 404;
  }
}
say_step('refused', lost => $lost);

($status, $capsule) = call(POST => "$at/pause");
say_step('pause', status => $status, state => $capsule->{status});
say_step('paused', answer => code(POST => "$at/exec", {cmd => 'true'}));
say_step('refused upload', status => upload("$at/files/write", '/root/f', $refused));
($status, $capsule) = call(POST => "$at/resume");
say_step('resume', status => $status, state => $capsule->{status});
my $template = "client-$ENV{CLIENT_NAME}";
say_step('snapshot', status => (call(POST => '/v1/snapshots', {sandbox_id => $id, name => $template}))[0]);
say_step('delete snapshot', status => (call(DELETE => "/v1/snapshots/$template"))[0]);
say_step('gone', answer => code(GET => $at));

# ---- WebSockets ----

# The events of a socket, one after the other: the loop runs until what is waited for has arrived.
package Conversation {
  use Mojo::Base -base, -signatures;
  has [qw(tx error)];
  has messages => sub { [] };

  sub open ($class, $path) {
    my $self = $class->new;
    $ua->websocket(
      ($base =~ s/^http/ws/r) . $path => main::headers() => sub ($, $tx) {
        return $self->error('no WebSocket') unless $tx->is_websocket;
        $tx->on(json => sub ($, $message) { push @{$self->messages}, $message });
        $self->tx($tx);
      });
    Mojo::IOLoop->one_tick until $self->tx || $self->error;
    die $self->error if $self->error;
    return $self;
  }

  sub say ($self, %message) { $self->tx->send({json => {%message}}) }
  sub enter ($self, $line) { $self->say(type => 'input', data => main::b64_encode($line, '')) }

  sub until ($self, $done) {
    Mojo::IOLoop->one_tick until $done->(@{$self->messages});
    return @{$self->messages};
  }

  # Others may have arrived with it, as the output that a terminal repeats.
  sub first_of ($self, $type) {
    my @found;
    $self->until(sub (@all) { @found = grep { $_->{type} eq $type } @all });
    return $found[0];
  }

  sub until_last ($self, $type) {
    return $self->until(sub (@all) { @all && $all[-1]{type} eq $type });
  }

  sub close ($self) {
    my $closed = 0;
    return if $self->tx->is_finished;
    $self->tx->on(finish => sub { $closed = 1 });
    $self->tx->finish;
    Mojo::IOLoop->one_tick until $closed;
  }
}

sub joined ($type, @messages) { return join '', map { $_->{data} } grep { $_->{type} eq $type } @messages }
sub typed (@messages) { return join '', map { b64_decode $_->{data} } grep { $_->{type} eq 'output' } @messages }

(undef, $capsule) = call(POST => '/v1/capsules', {memory_mb => 256});
$at = "/v1/capsules/$capsule->{id}";
call(GET => "$at?wait=running&timeout=120");

my $stream = Conversation->open("$at/exec/stream");
$stream->say(type => 'start', cmd => 'sh', args => ['-c', 'echo out; echo err >&2; sleep 303']);
$stream->until(sub (@all) { joined('stdout', @all) eq "out\n" && joined('stderr', @all) eq "err\n" });
$stream->say(type => 'stop');
my @messages = $stream->until_last('exit');
say_step('stream', first => $messages[0]{type}, exit_code => $messages[-1]{exit_code});
$stream->close;

my $terminal = Conversation->open("$at/pty");
$terminal->say(type => 'start', cmd => '/bin/bash', cols => 80, rows => 24);
my $started = $terminal->first_of('started');
$terminal->say(type => 'resize', cols => 120, rows => 40);
$terminal->enter("stty size; word=again\n");
$terminal->until(sub (@all) { typed(@all) =~ /40 120/ });
$terminal->close;
my $returned = Conversation->open("$at/pty");
$returned->say(type => 'connect', tag => $started->{tag});
my $back = $returned->first_of('started');
$returned->enter("echo \$word-and-\$word\n");
$returned->until(sub (@all) { typed(@all) =~ /again-and-again/ });
$returned->say(type => 'kill');
my $last = ($returned->until_last('exit'))[-1];
say_step('terminal', same => bool($back->{pid} == $started->{pid}), last => $last->{type});
$returned->close;

my $dropped = Conversation->open("$at/exec/stream");
$dropped->say(type => 'start', cmd => 'sleep', args => ['304']);
$dropped->until_last('start');
Mojo::IOLoop->remove($dropped->tx->connection);
say_step('aborted', of => 'socket', id => $capsule->{id});
<STDIN>;

my $lost_terminal = Conversation->open("$at/pty");
$lost_terminal->say(type => 'start', cmd => 'sleep', args => ['305']);
$lost_terminal->first_of('started');
Mojo::IOLoop->remove($lost_terminal->tx->connection);
say_step('aborted', of => 'terminal', id => $capsule->{id});
<STDIN>;
