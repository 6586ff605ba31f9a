SELECT * FROM pgmq.send('bench', :request);
