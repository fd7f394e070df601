"""What the store does in one atomic step: the Lua of leases, rates and announcements.

Redis TIME is the only clock. A store without persistence may lose its memory; the first holder that
remembers an earlier life of it (`known`) starts a quarantine of one term, in which leases are only
confirmed and buckets fill from empty, so that what is still in use is never granted twice.
"""

_TIME = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_EPOCH = (
    _TIME
    + """
local function epoch_of(key, known, term)
  local id, quarantine
  local value = redis.call('GET', key)
  if value then
    id, quarantine = string.match(value, '^(%S+) (%d+)$')
    quarantine = tonumber(quarantine)
  end
  if not id then
    id, quarantine = clock[1] .. '.' .. clock[2], 0
    redis.call('SET', key, id .. ' 0')
  end
  if known ~= '' and known ~= id and quarantine == 0 then
    quarantine = now + term
    redis.call('SET', key, id .. ' ' .. string.format('%d', quarantine))
  end
  return id, quarantine
end
"""
)

# KEYS: lease, epoch. ARGV: known, term_ms, holder, number, want, claim, limit.
# Returns {granted, free, quarantined, epoch}.
LEASE = (
    _EPOCH
    + """
local term, holder, number = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local want, claim, limit = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local id, quarantine = epoch_of(KEYS[2], ARGV[1], term)
local mine, newest, others = 0, -1, 0
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local amount, at, expires = string.match(entries[i + 1], '^(%d+) (%d+) (%d+)$')
  if entries[i] == holder then
    newest = tonumber(at)
    if tonumber(expires) > now then mine = tonumber(amount) end
  elseif tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], entries[i])
  else
    others = others + tonumber(amount)
  end
end
local granted = mine
if number > newest then
  if quarantine > now then want = math.min(want, math.max(claim, mine)) end
  granted = math.min(want, math.max(0, limit - others))
  redis.call('HSET', KEYS[1], holder, string.format('%d %d %d', granted, number, now + term))
  redis.call('PEXPIRE', KEYS[1], term * 2)
end
return {granted, math.max(0, limit - others - granted), quarantine > now and 1 or 0, id}
"""
)

# KEYS: bucket, epoch. ARGV: known, term_ms, want (below 0: give back), tokens per minute.
# Returns {granted, level, quarantined, epoch}.
RATE = (
    _EPOCH
    + """
local term, want, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local id, quarantine = epoch_of(KEYS[2], ARGV[1], term)
local level, updated = unpack(redis.call('HMGET', KEYS[1], 'level', 'updated'))
if level then
  level, updated = tonumber(level), tonumber(updated)
elseif quarantine > 0 then
  level, updated = 0, quarantine - term
else
  level, updated = limit, now
end
level = math.min(limit, level + math.max(0, now - updated) * limit / 60000)
local granted = 0
if want < 0 then
  level = math.min(limit, level - want)
else
  granted = math.min(want, math.floor(level))
  level = level - granted
end
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'updated', string.format('%d', now))
redis.call('PEXPIRE', KEYS[1], 120000)
return {granted, math.floor(level), quarantine > now and 1 or 0, id}
"""
)

# KEYS: members of a kind. ARGV: id, started_us, incarnation, ttl_ms, announcement.
# Returns 1, or 0 where a later incarnation is announced under this id.
ANNOUNCE = (
    _TIME
    + """
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found then
  local expires, started, incarnation = string.match(found, '^(%d+) (%d+) (%S+) ')
  if tonumber(expires) > now and incarnation ~= ARGV[3] and tonumber(started) > tonumber(ARGV[2]) then
    return 0
  end
end
local expires = string.format('%d', now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], ARGV[1], expires .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[5])
return 1
"""
)

# KEYS: members of a kind. ARGV: id, incarnation. Returns whether it was announced.
WITHDRAW = """
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found and string.match(found, '^%d+ %d+ (%S+) ') == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
"""

# KEYS: members of each kind asked for. Returns the live announcements.
MEMBERS = (
    _TIME
    + """
local live = {}
for _, key in ipairs(KEYS) do
  local entries = redis.call('HGETALL', key)
  for i = 1, #entries, 2 do
    local expires, announcement = string.match(entries[i + 1], '^(%d+) %d+ %S+ (.*)$')
    if expires and tonumber(expires) > now then
      live[#live + 1] = announcement
    else
      redis.call('HDEL', key, entries[i])
    end
  end
end
return live
"""
)
