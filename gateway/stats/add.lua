-- Adds integer increments to hashes of counters, one per cell and minute, once per (writer, sequence number).
-- KEYS: 1 the writer's last applied sequence number, then for each minute its index followed by its cells' hashes.
-- ARGV: 1 sequence number (0: no check), 2 seconds to keep the writer's number, then for each minute: Unix time at
--       which it expires, number of cells, and for each cell its name, number of fields, and as many pairs
--       (field, increment).
-- An index has a version per cell, and one for the minute under '*': they change with every addition, and begin at the
-- time of the first one, so that an index that was lost and made anew never looks like the old one.
-- Returns {1 applied | 0 seen before, increments that could not be applied}.
local seq = tonumber(ARGV[1])
if seq > 0 then
  local last = tonumber(redis.call('GET', KEYS[1]) or '0')
  if seq <= last then return {0, 0} end
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
local time = redis.call('TIME')
local first = time[1] .. string.format('%06d', tonumber(time[2]))
local function touch(index, name)
  if redis.call('HINCRBY', index, name, 1) == 1 then redis.call('HSET', index, name, first) end
end
local failed = 0
local key, at = 2, 3
while key <= #KEYS do
  local index, expires, cells = KEYS[key], ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  for cell = 1, cells do
    local name, fields = ARGV[at], tonumber(ARGV[at + 1])
    at = at + 2
    for _ = 1, fields do
      local reply = redis.pcall('HINCRBY', KEYS[key + cell], ARGV[at], ARGV[at + 1])
      if type(reply) == 'table' and reply.err then failed = failed + 1 end
      at = at + 2
    end
    redis.call('EXPIREAT', KEYS[key + cell], expires)
    touch(index, name)
  end
  touch(index, '*')
  redis.call('EXPIREAT', index, expires)
  key = key + cells + 1
end
return {1, failed}
