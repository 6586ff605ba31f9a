\set k 1 + :client_id + :clients * :n
\set n :n + 1
SELECT * FROM once.cancel_refund('job', :k);
